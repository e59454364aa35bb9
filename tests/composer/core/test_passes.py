"""Passes: each puts algorithms in order."""

from unittest.mock import Mock

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
    def __init__(self, interpolate_loss=False):
        self.interpolate_loss = interpolate_loss


class First(One):
    run_order = "first"


class Last(One):
    run_order = "last"


def test_sorting_is_stable():
    items = [1, "a", 2, "b", 3]
    assert sort_to_front(items, str) == ["a", "b", 1, 2, 3]
    assert sort_to_back(items, str) == [1, 2, 3, "a", "b"]
    assert items == [1, "a", 2, "b", 3]


def test_run_order():
    a, first, b, last = One(), First(), One(), Last()
    assert sort_selective_backprop_first([a, first, b], Event.INIT) == [first, a, b]
    assert sort_low_precision_layernorm_last([a, last, b], Event.INIT) == [a, b, last]
    plain = object()
    assert sort_selective_backprop_first([plain, first], Event.INIT) == [first, plain]


def test_stand_ins_have_the_order_of_their_class():
    a, first, last = Mock(), Mock(spec=First), Mock(spec=Last)
    assert sort_selective_backprop_first([a, first], Event.INIT) == [first, a]
    assert sort_low_precision_layernorm_last([last, a], Event.INIT) == [a, last]


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
