import pytest

from composer.callbacks import runtime_estimator as module
from composer.callbacks.runtime_estimator import RuntimeEstimator
from composer.loggers.in_memory_logger import InMemoryLogger
from tests.composer.plugins import Evaluation, HandRun


class Clock:
    """A clock that a run moves: each batch takes a second of it, and each evaluation as it says."""

    def __init__(self):
        self.now = 100.0

    def time(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def estimates(clock, **kwargs):
    memory = InMemoryLogger()
    run = HandRun(RuntimeEstimator(time_unit="seconds"), memory, batch_seconds=1.0, **kwargs)
    run.loaded()
    train = run.train_batch

    def train_batch(batch):
        # The callback's clock starts at BATCH_START, so time passes within the batch.
        forward = run.state.model.forward

        def slow(batch):
            clock.now += 1.0
            return forward(batch)

        run.state.model.forward = slow
        try:
            train(batch)
        finally:
            run.state.model.forward = forward

    run.train_batch = train_batch
    if run.evaluation is not None:
        evaluate = run._evaluate

        def slow_evaluate():
            clock.now += 2.0
            evaluate()

        run._evaluate = slow_evaluate
    run.fit().close()
    return memory, [(s.batch.value, round(v, 6)) for s, v in memory.data["time/remaining_estimate"]]


@pytest.mark.parametrize("max_duration", ["6ba", "2ep", "24sp"])
def test_a_steady_run(clock, max_duration):
    memory, logged = estimates(clock, max_duration=max_duration)
    assert logged == [(2, 4.0), (3, 3.0), (4, 2.0), (5, 1.0), (6, 0.0)]
    assert memory.hyperparameters == {"time/remaining_estimate_unit": "seconds"}


def test_evaluations_to_come_count(clock):
    # Two batches of evaluation a second each, after every third batch.
    _, logged = estimates(clock, max_duration="3ep", evaluation=Evaluation("eval", [1, 2, 3]))
    assert logged[:2] == [(2, 7.0), (3, 6.0)]  # before the first evaluation nothing is known of it
    assert logged[2:5] == [(4, 5 + 4.0), (5, 4 + 4.0), (6, 3 + 4.0)]
    assert logged[5:] == [(7, 2 + 2.0), (8, 1 + 2.0), (9, 2.0)]


def test_wrong_unit():
    with pytest.raises(ValueError, match="time_unit"):
        RuntimeEstimator(time_unit="weeks")
