"""Events: their order, their pairs, and the ways to write one."""

import pytest

from composer.core.callback import Callback
from composer.core.event import Event


def test_values_are_lower_case_names_and_callback_methods():
    for event in Event:
        assert event.value == event.name.lower()
        assert callable(getattr(Callback, event.value))
    assert len(Event) == 40


def test_every_before_event_has_its_after_event():
    before = [event for event in Event if event.is_before_event]
    after = [event for event in Event if event.is_after_event]
    assert len(before) == len(after) == 18
    assert not set(before) & set(after)
    assert {e.canonical_name for e in before} == {e.canonical_name for e in after}
    neither = set(Event) - set(before) - set(after)
    assert {event.name for event in neither} == {
        "INIT",
        "BATCH_CHECKPOINT",
        "EPOCH_CHECKPOINT",
        "ITERATION_CHECKPOINT",
    }


def test_canonical_names():
    assert Event.EVAL_BEFORE_FORWARD.canonical_name == "eval_forward"
    assert Event.BATCH_END.canonical_name == "batch"
    assert Event.INIT.canonical_name == "init"


def test_kinds():
    assert Event.PREDICT_BATCH_END.is_predict and not Event.PREDICT_BATCH_END.is_eval
    assert Event.EVAL_STANDALONE_START.is_eval
    assert not Event.FIT_START.is_eval


@pytest.mark.parametrize("text", ["fit_start", "FIT_START", "Fit_Start"])
def test_from_text(text):
    assert Event(text) is Event.FIT_START
