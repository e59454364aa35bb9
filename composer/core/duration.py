"""An amount of training in one unit: parsing, arithmetic and comparison."""

from __future__ import annotations

import math
import re
from typing import Any, Generic, TypeVar

from composer.core.serializable import Serializable
from composer.core.time_unit import TimeUnit
from composer.core.wall_clock import parse_wall_clock

TValue = TypeVar("TValue", int, float)

_TIME_STRING = re.compile(
    r"^(.+)(" + "|".join(re.escape(unit.value) for unit in TimeUnit) + r")$", re.IGNORECASE
)


class Time(Generic[TValue], Serializable):
    """An amount of training: ``Time(5, "ba")`` is five batches.

    Where a Time is expected a string does as well: ``"5ba"``, ``"0.5dur"``, ``"1h30m"``. Times add
    up and compare with Times of the same unit and with plain numbers, which count in that unit. A
    Time divided by one of the same unit is a fraction (``dur``). A Time is never false: compare it
    with 0 instead.

    Args:
        value: How many; an integer except for the unit ``dur``.
        unit: A `TimeUnit`, or its name or suffix.

    Raises:
        TypeError: If the value is not an integer and the unit is not ``dur``.
    """

    _value: TValue
    _unit: TimeUnit

    def __init__(self, value: TValue, unit: str | TimeUnit) -> None:
        unit = TimeUnit(unit)
        if unit is TimeUnit.DURATION:
            value = float(value)  # type: ignore[assignment]  # TValue is float for this unit
        elif not isinstance(value, int):
            raise TypeError(
                f"value {value} is of type {type(value)}. Units {unit} require integer values."
            )
        self._value, self._unit = value, unit

    @classmethod
    def from_iteration(cls, iteration: int) -> Time[int]:
        """Returns that many iterations."""
        return Time(iteration, TimeUnit.ITERATION)

    @classmethod
    def from_epoch(cls, epoch: int) -> Time[int]:
        """Returns that many epochs."""
        return Time(epoch, TimeUnit.EPOCH)

    @classmethod
    def from_batch(cls, batch: int) -> Time[int]:
        """Returns that many batches."""
        return Time(batch, TimeUnit.BATCH)

    @classmethod
    def from_sample(cls, sample: int) -> Time[int]:
        """Returns that many samples."""
        return Time(sample, TimeUnit.SAMPLE)

    @classmethod
    def from_token(cls, token: int) -> Time[int]:
        """Returns that many tokens."""
        return Time(token, TimeUnit.TOKEN)

    @classmethod
    def from_duration(cls, duration: float) -> Time[float]:
        """Returns that fraction of the training duration."""
        return Time(duration, TimeUnit.DURATION)

    @classmethod
    def from_timedelta(cls, timestring: str) -> Time[int]:
        """Returns the seconds of a wall-clock string such as ``1h20m40s``, ``90m`` or ``48h``."""
        return Time(parse_wall_clock(timestring), TimeUnit.SECOND)

    @classmethod
    def from_timestring(cls, timestring: str) -> Time[Any]:
        """Parses a time string: a number and a unit, or a wall-clock string.

        >>> Time.from_timestring("0.5dur"), Time.from_timestring("90m")
        (Time(0.5, TimeUnit.DURATION), Time(5400, TimeUnit.SECOND))

        Raises:
            ValueError: If it is not a time string.
            TypeError: If the number is not whole and the unit is not ``dur``.
        """
        match = _TIME_STRING.match(timestring)
        if match is None:
            return cls.from_timedelta(timestring)
        number, unit = match.group(1), TimeUnit(match.group(2))
        try:
            return Time(int(number), unit)  # keeps counts beyond a float's 53 bits exact
        except ValueError:
            pass
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise ValueError(f"Invalid time string: {timestring}; {number!r} is not a number")
        if unit is TimeUnit.DURATION:
            return Time(value, unit)
        if math.isinf(value):
            raise ValueError(f"Invalid time string: {timestring}; {unit} requires a finite value")
        if value != int(value):
            raise TypeError(
                f"value {value} is not an integer. Units {unit} require integer values."
            )
        return Time(int(value), unit)

    @classmethod
    def from_input(cls, i: Any, default_int_unit: str | TimeUnit | None = None) -> Time[Any]:
        """Makes a Time of a Time, a time string or a number.

        Args:
            i: What to convert.
            default_int_unit: The unit of a plain number.

        Raises:
            RuntimeError: If it is a number and there is no default unit, or something else.
        """
        if isinstance(i, Time):
            return i
        if isinstance(i, str):
            return cls.from_timestring(i)
        if isinstance(i, (int, float)):
            if default_int_unit is None:
                raise RuntimeError(
                    "default_int_unit must be specified when constructing Time from an integer."
                )
            return Time(i, default_int_unit)
        raise RuntimeError(f"Cannot convert type {i} to {cls.__name__}")

    @property
    def value(self) -> TValue:
        """How many."""
        return self._value

    @property
    def unit(self) -> TimeUnit:
        """Of what."""
        return self._unit

    def to_timestring(self) -> str:
        """Returns the time string, ``5ba``."""
        return f"{self.value}{self.unit.value}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value}, {self.unit})"

    def __str__(self) -> str:
        return self.to_timestring()

    def __hash__(self) -> int:
        return hash((self.value, self.unit))

    def _same_unit(self, other: Any, action: str) -> Time[Any]:
        """Parses the other operand and makes sure that it has this unit."""
        other = Time.from_input(other, self.unit)
        if other.unit is not self.unit:
            raise RuntimeError(
                f"Cannot {action.format(self, other)} since they have different units."
            )
        return other

    def _difference(self, other: Any) -> Any:
        """Returns something below, equal to or above 0 as this is to the other."""
        if not isinstance(other, (int, float, str, Time)):
            return NotImplemented
        other = self._same_unit(other, "compare {} to {}")
        return (self.value > other.value) - (self.value < other.value)

    def __eq__(self, other: object) -> bool:
        difference = self._difference(other)
        return difference if difference is NotImplemented else difference == 0

    def __lt__(self, other: Any) -> bool:
        difference = self._difference(other)
        return difference if difference is NotImplemented else difference < 0

    def __le__(self, other: Any) -> bool:
        difference = self._difference(other)
        return difference if difference is NotImplemented else difference <= 0

    def __gt__(self, other: Any) -> bool:
        difference = self._difference(other)
        return difference if difference is NotImplemented else difference > 0

    def __ge__(self, other: Any) -> bool:
        difference = self._difference(other)
        return difference if difference is NotImplemented else difference >= 0

    def __add__(self, other: Any) -> Time[TValue]:
        if other.__class__ is int and self._value.__class__ is int:  # counters, several a batch
            return _counted(self._value + other, self._unit)
        other = self._same_unit(other, "add {} to {}")
        return Time(self.value + other.value, self.unit)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Time[TValue]:
        other = self._same_unit(other, "subtract {1} from {0}")
        return Time(self.value - other.value, self.unit)

    def __rsub__(self, other: Any) -> Time[TValue]:
        return (-self) + other

    def __neg__(self) -> Time[TValue]:
        return Time(-self.value, self.unit)

    def __pos__(self) -> Time[TValue]:
        return Time(self.value, self.unit)

    def __mod__(self, other: Any) -> Time[TValue]:
        other = self._same_unit(other, "take mod of {} by {}")
        return Time(self.value % other.value, self.unit)

    def __truediv__(self, other: Any) -> Time[Any]:
        if isinstance(other, (int, float)):
            return Time(type(self.value)(self.value / other), self.unit)
        other = self._same_unit(other, "divide {} by {}")
        return Time(self.value / other.value, TimeUnit.DURATION)

    def __mul__(self, other: Any) -> Time[Any]:
        if isinstance(other, (int, float)):
            return Time(type(self.value)(self.value * other), self.unit)
        other = Time.from_input(other)
        if TimeUnit.DURATION not in (self.unit, other.unit):
            raise RuntimeError("Multiplication is supported only if one of the units is Duration")
        product = self.value * other.value
        unit = other.unit if self.unit is TimeUnit.DURATION else self.unit
        return Time(product if unit is TimeUnit.DURATION else int(product), unit)

    __rmul__ = __mul__

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)


def ensure_time(maybe_time: Time[Any] | str | int, int_unit: TimeUnit | str) -> Time[Any]:
    """Returns a Time of a Time, a time string or a number.

    Args:
        maybe_time: What to convert.
        int_unit: The unit of a plain number.
    """
    return Time.from_input(maybe_time, int_unit)


def _counted(value: Any, unit: TimeUnit) -> Time[Any]:
    """Makes a Time of an int without checking it again."""
    time = object.__new__(Time)
    time._value, time._unit = value, unit
    return time
