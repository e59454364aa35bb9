"""Passes: each puts algorithms in order."""

import pytest

from composer.core.event import Event
from composer.core.passes import (
    NotIntendedUseWarning,
    set_filo_order,
    sort_low_precision_layernorm_last,
    sort_selective_backprop_first,
    sort_to_back,
    sort_to_front,
    warn_if_multiple_loss_interpolation,
)


class One:
    def __init__(self, run_order="middle", interpolate_loss=False):
        self.run_order, self.interpolate_loss = run_order, interpolate_loss


def test_sorting_is_stable():
    items = [1, "a", 2, "b", 3]
    assert sort_to_front(items, str) == ["a", "b", 1, 2, 3]
    assert sort_to_back(items, str) == [1, 2, 3, "a", "b"]
    assert items == [1, "a", 2, "b", 3]


def test_run_order():
    a, first, b, last = One(), One("first"), One(), One("last")
    assert sort_selective_backprop_first([a, first, b], Event.INIT) == [first, a, b]
    assert sort_low_precision_layernorm_last([a, last, b], Event.INIT) == [a, b, last]
    plain = object()
    assert sort_selective_backprop_first([plain, first], Event.INIT) == [first, plain]


def test_after_events_are_reversed():
    assert set_filo_order([1, 2], Event.AFTER_FORWARD) == [2, 1]
    assert set_filo_order([1, 2], Event.BEFORE_FORWARD) == [1, 2]
    assert set_filo_order([1, 2], Event.BATCH_END) == [1, 2]
    assert set_filo_order([1, 2], Event.EVAL_AFTER_FORWARD) == [1, 2]


def test_two_mixtures_of_losses_are_warned_about():
    mixing = [One(interpolate_loss=True), One(), One(interpolate_loss=True)]
    assert warn_if_multiple_loss_interpolation(mixing[:2], Event.INIT) == mixing[:2]
    with pytest.warns(NotIntendedUseWarning, match="One, One"):
        assert warn_if_multiple_loss_interpolation(mixing, Event.INIT) == mixing
