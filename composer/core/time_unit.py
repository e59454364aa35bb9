"""The units in which training is measured."""

from __future__ import annotations

from composer.utils.string_enum import StringEnum


class TimeUnit(StringEnum):
    """The units of `Time`; the value is the suffix of a time string."""

    ITERATION = "iter"
    EPOCH = "ep"
    BATCH = "ba"
    SAMPLE = "sp"
    TOKEN = "tok"
    DURATION = "dur"
    """A fraction of the whole training duration: the only unit with fractional values."""
    SECOND = "sec"
