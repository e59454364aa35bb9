"""Intervals: when they are due, against the records of upstream and the field cases."""

import datetime
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from composer.core.duration import Time
from composer.core.event import Event
from composer.core.intervals import create_interval_scheduler
from composer.core.state import State
from composer.core.timestamp import Timestamp
from composer.devices.device_cpu import DeviceCPU

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "golden" / "time" / "time.json").read_text(encoding="utf-8")
)["interval_scheduler"]
# Upstream fires the end of training twice here, at the last batch and at the last epoch.
TWICE_AT_THE_END = ("0.3dur", "80sp")
PER_BATCH = 4


class Loader:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


def a_state(max_duration, batches_per_epoch=5, iteration_length=None):
    state = State(torch.nn.Linear(1, 1), 0, "run", DeviceCPU(), max_duration=max_duration)
    if batches_per_epoch is None:
        state.set_dataloader(iter([]), "train")
    else:
        state.set_dataloader(Loader(batches_per_epoch), "train")
    state._iteration_length = iteration_length
    return state


def fires(is_due, state, batches_per_epoch=5, samples=4, tokens=32, seconds=2):
    """Trains without a model and returns the (event, batch) pairs at which it was due."""
    found = []

    def offer(*events):
        for event in events:
            if is_due(state, event):
                found.append([event.value, state.timestamp.batch.value])

    while state.timestamp < state.max_duration:
        state.advance_batch(samples, tokens, datetime.timedelta(seconds=seconds))
        offer(Event.BATCH_END, Event.BATCH_CHECKPOINT)
        if state.timestamp.batch_in_epoch == batches_per_epoch:
            state.advance_epoch()
            offer(Event.EPOCH_END, Event.EPOCH_CHECKPOINT)
            length = state._iteration_length
            if length is not None and state.timestamp.epoch_in_iteration == length:
                state.advance_iteration()
                offer(Event.ITERATION_END, Event.ITERATION_CHECKPOINT)
    offer(Event.FIT_END)
    return found


@pytest.mark.parametrize(
    "record",
    GOLDEN["records"],
    ids=lambda r: "-".join(str(value) for key, value in r.items() if key != "fires"),
)
def test_due_as_recorded(record):
    settings = {
        key: record[key]
        for key in ("include_end_of_training", "checkpoint_events")
        if key in record
    }
    if "final_events" in record:
        settings["final_events"] = {Event(name) for name in record["final_events"]}
    if "error" in record:
        with pytest.raises(ValueError):
            create_interval_scheduler(record["interval"], **settings)
        return
    expected = record["fires"]
    if (record["interval"], record["max_duration"]) == TWICE_AT_THE_END:
        expected = expected[:-1]
    if record["max_duration"] == "30sec":  # C5: upstream is never due but at the end, and twice
        expected = [["batch_checkpoint", batch] for batch in (5, 9, 14)] + expected[:1]
    is_due = create_interval_scheduler(record["interval"], **settings)
    assert fires(is_due, a_state(record["max_duration"])) == expected


@pytest.mark.parametrize(
    "interval, duration, times",
    [
        (1, "5ep", 5),
        ("2ep", "8ep", 4),
        ("10ba", "8ep", 4),
        ("0.25dur", "4ep", 4),
        ("1ep", "4ep", 4),
        ("5ba", "4ep", 4),
        ("5ba", "10ba", 2),
        ("0.35dur", "4ep", 3),
        ("0.01dur", "100ba", 100),
        ("0.10dur", "70sp", 10),
        ("0.05dur", "80sp", 20),
    ],
)
def test_number_of_saves(interval, duration, times):
    is_due = create_interval_scheduler(interval)
    assert len(fires(is_due, a_state(duration), samples=2)) == times


def test_iterations_of_two_epochs():
    is_due = create_interval_scheduler("2iter")
    found = fires(is_due, a_state("8ep", iteration_length="2ep"))
    # The end of training is found at the last epoch, before the last iteration is counted.
    assert found == [["iteration_checkpoint", 20], ["epoch_checkpoint", 40]]


def test_b26_interval_that_is_no_multiple_of_the_batch():
    is_due = create_interval_scheduler("10sp")
    found = fires(is_due, a_state("30sp"), samples=6)
    assert [batch * 6 for _, batch in found] == [12, 24, 30]


@pytest.mark.parametrize(
    "interval, duration, batches", [("0.25dur", 8, [2, 4, 6, 8]), ("0.3dur", 10, [3, 6, 9, 10])]
)
def test_b27_fractional_eval_interval(interval, duration, batches):
    is_due = create_interval_scheduler(
        interval, checkpoint_events=False, final_events={Event.FIT_END}
    )
    assert [batch for _, batch in fires(is_due, a_state(f"{duration}ba"))] == batches


@pytest.mark.parametrize("interval", [0, "0ba", "0dur", "0.0dur", "-0.0dur", "0s"])
def test_c4_zero_is_never(interval):
    assert fires(create_interval_scheduler(interval), a_state("2ep")) == []


@pytest.mark.parametrize("interval", [-1, "-3ba", "-0.5dur", "infdur"])
def test_c4_negative_and_endless_are_refused(interval):
    with pytest.raises(ValueError, match="must be 0"):
        create_interval_scheduler(interval)


def test_c5_fraction_of_seconds():
    found = fires(create_interval_scheduler("0.5dur"), a_state("20sec"))
    assert [batch for _, batch in found] == [5, 10]


def test_c5_fraction_of_iterations():
    found = fires(create_interval_scheduler("0.5dur"), a_state("2iter", iteration_length="2ep"))
    assert [batch for _, batch in found] == [10, 20]
    state = a_state("2iter")
    state.advance_batch(1, 1)
    with pytest.raises(RuntimeError, match="length of an iteration"):
        create_interval_scheduler("0.5dur")(state, Event.BATCH_CHECKPOINT)


def test_fraction_of_epochs_needs_a_length():
    state = a_state("2ep", batches_per_epoch=None)
    state.advance_batch(1, 1)
    with pytest.raises(RuntimeError, match="with a length"):
        create_interval_scheduler("0.5dur")(state, Event.BATCH_CHECKPOINT)


def test_a_fraction_is_taken_as_written():
    # 0.07 * 100 is 7.000000000000001 in binary, which rounds up to 8.
    found = fires(create_interval_scheduler("0.07dur"), a_state("100ba"))
    assert [batch for _, batch in found][:3] == [7, 14, 21]


def test_more_often_than_every_batch_is_every_batch():
    found = fires(create_interval_scheduler("0.001dur"), a_state("10ba"))
    assert [batch for _, batch in found] == list(range(1, 11))


def test_stopping_early_is_the_end():
    is_due = create_interval_scheduler("7ba")
    state = a_state("100ba")
    for _ in range(3):
        state.advance_batch(1, 1)
        assert not is_due(state, Event.BATCH_CHECKPOINT)
    state.stop_training()
    assert is_due(state, Event.BATCH_CHECKPOINT)
    assert not is_due(state, Event.EPOCH_CHECKPOINT)


def test_evaluators_may_share_one():
    is_due = create_interval_scheduler("2ba")
    state = a_state("4ba")
    state.advance_batch(1, 1)
    state.advance_batch(1, 1)
    assert is_due(state, Event.BATCH_CHECKPOINT)
    assert is_due(state, Event.BATCH_CHECKPOINT)


def test_never_due_before_the_first_batch():
    is_due = create_interval_scheduler("1ba")
    assert not any(is_due(a_state("1ba"), event) for event in Event)


def test_any_state_with_the_attributes_will_do():
    state = SimpleNamespace(
        timestamp=Timestamp(batch=2),
        previous_timestamp=Timestamp(batch=1),
        max_duration=Time(4, "ba"),
        get_elapsed_duration=lambda: Time(0.5, "dur"),
    )
    assert create_interval_scheduler("2ba")(state, Event.BATCH_CHECKPOINT)
