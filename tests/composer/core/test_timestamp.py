"""Timestamp: against the records of upstream, and by its laws."""

import datetime
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.core.duration import Time
from composer.core.timestamp import Timestamp

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "golden" / "time" / "time.json").read_text(encoding="utf-8")
)


def in_seconds(state):
    return {
        key: value.total_seconds() if isinstance(value, datetime.timedelta) else value
        for key, value in state.items()
    }


def test_the_sequence_is_as_recorded():
    def seconds(number):
        return datetime.timedelta(seconds=number)

    steps = [
        lambda t: t,
        lambda t: t.to_next_batch(4, 32, seconds(1.5)),
        lambda t: t.to_next_batch(4, 32, seconds(2)),
        lambda t: t.to_next_epoch(),
        lambda t: t.to_next_batch(3),
        lambda t: t.to_next_iteration(),
        lambda t: t.to_next_epoch(seconds(5)),
    ]
    stamp = Timestamp()
    for step, (name, expected) in zip(steps, GOLDEN["timestamp_sequence"], strict=True):
        stamp = step(stamp)
        assert in_seconds(stamp.state_dict()) == expected, name
        assert list(stamp.state_dict()) == list(expected)


def test_the_repr_is_as_recorded_and_comes_back():
    stamp = Timestamp(
        epoch=1,
        batch=7,
        sample=28,
        token=224,
        batch_in_epoch=2,
        sample_in_epoch=8,
        token_in_epoch=64,
        total_wct=datetime.timedelta(seconds=14),
    )
    assert repr(stamp) == GOLDEN["timestamp_repr"]
    assert eval(repr(stamp)) == stamp


def test_old_checkpoints_lack_iterations_and_clocks():
    stamp = Timestamp()
    names = "epoch batch sample token batch_in_epoch sample_in_epoch token_in_epoch".split()
    stamp.load_state_dict(dict(zip(names, range(1, 8), strict=True)))
    assert stamp.epoch == 1 and stamp.token_in_epoch == 7 and stamp.iteration == 0
    with pytest.raises(KeyError):
        stamp.load_state_dict({"epoch": 1})


def test_a_counter_has_its_unit():
    with pytest.raises(ValueError, match="batch of a Timestamp"):
        Timestamp(batch=Time(1, "ep"))
    with pytest.raises(TypeError):
        hash(Timestamp())


def test_a_copy_takes_what_the_constructor_takes():
    stamp = Timestamp(1, 2, batch=3, total_wct=datetime.timedelta(seconds=4))
    assert stamp.copy() == stamp and stamp.copy() is not stamp
    changed = stamp.copy(5, batch=Time(0, "ba"), total_wct=datetime.timedelta(0))
    assert changed == Timestamp(5, 2)
    with pytest.raises(ValueError, match="batch of a Timestamp"):
        stamp.copy(batch=Time(1, "ep"))


def test_only_epoch_in_iteration_can_be_set():
    stamp = Timestamp()
    stamp.epoch_in_iteration = 3
    assert stamp.epoch_in_iteration == Time(3, "ep")
    with pytest.raises(ValueError):
        stamp.epoch_in_iteration = Time(3, "ba")
    with pytest.raises(AttributeError):
        stamp.batch = 3


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1000)), max_size=20))
def test_counters_are_sums_and_nothing_changes_in_place(batches):
    stamp = Timestamp()
    for samples, tokens in batches:
        before, held = stamp.state_dict(), stamp
        stamp = stamp.to_next_batch(samples, tokens, datetime.timedelta(seconds=1))
        assert held.state_dict() == before
    assert stamp.batch == stamp.batch_in_epoch == len(batches)
    assert stamp.sample == sum(samples for samples, _ in batches)
    assert stamp.token == stamp.token_in_iteration == sum(tokens for _, tokens in batches)
    assert stamp.get("sec") == len(batches)
    loaded = Timestamp()
    loaded.load_state_dict(stamp.to_next_epoch().state_dict())
    assert loaded == stamp.to_next_epoch()
