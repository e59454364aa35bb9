"""Evaluator: its defaults and what it refuses."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer.core.data_spec import DataSpec
from composer.core.evaluator import Evaluator, ensure_evaluator
from composer.core.event import Event
from composer.core.state import State
from composer.devices.device_cpu import DeviceCPU


def a_loader():
    return DataLoader(TensorDataset(torch.zeros(6, 2)), batch_size=3)


def test_defaults():
    evaluator = Evaluator(label="eval", dataloader=a_loader())
    assert isinstance(evaluator.dataloader, DataSpec)
    assert evaluator.metric_names == [".*"]
    assert evaluator.eval_interval is None and evaluator.subset_num_batches is None
    assert evaluator.device_eval_microbatch_size == 3 and not evaluator.auto_microbatching


def test_microbatch_size():
    assert (
        Evaluator(
            label="e", dataloader=[1], device_eval_microbatch_size=2
        ).device_eval_microbatch_size
        == 2
    )
    with pytest.warns(UserWarning, match="experimental"):
        auto = Evaluator(label="e", dataloader=a_loader(), device_eval_microbatch_size="auto")
    assert auto.auto_microbatching and auto.device_eval_microbatch_size == 3
    for size in ("many", 0, -1, True):
        with pytest.raises(ValueError, match=f"{size!r} must be a number above 0"):
            Evaluator(label="e", dataloader=a_loader(), device_eval_microbatch_size=size)
    with pytest.raises(AttributeError, match="no batch_size"):
        Evaluator(label="e", dataloader=[1])


def test_metric_names_are_a_list():
    with pytest.raises(ValueError, match="should be a list of strings"):
        Evaluator(label="e", dataloader=a_loader(), metric_names="Accuracy")


def test_interval():
    evaluator = Evaluator(label="e", dataloader=a_loader(), eval_interval="2ba")
    state = State(torch.nn.Linear(1, 1), 0, "run", DeviceCPU(), max_duration="3ba")
    due = []
    for _ in range(3):
        state.advance_batch(1, 1)
        due += [
            (state.timestamp.batch.value, event.value)
            for event in (Event.BATCH_END, Event.BATCH_CHECKPOINT)
            if evaluator.eval_interval(state, event)
        ]
    assert due == [(2, "batch_end")]
    assert evaluator.eval_interval(state, Event.FIT_END)

    def custom(state, event):
        return True

    evaluator.eval_interval = custom
    assert evaluator.eval_interval is custom
    evaluator.eval_interval = None
    assert evaluator.eval_interval is None


def test_ensure():
    evaluator = ensure_evaluator(a_loader(), ["A", "B"])
    assert evaluator.label == "eval" and evaluator.metric_names == ["A", "B"]
    assert ensure_evaluator(evaluator, []) is evaluator
    assert ensure_evaluator({"dataloader": a_loader()}, ["A"]).dataloader.num_samples == 6
