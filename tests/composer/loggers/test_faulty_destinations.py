"""A logger that fails while the run goes on is warned about once, and stops nothing."""

import warnings

import pytest

from composer.core.event import Event
from composer.loggers.file_logger import FileLogger
from composer.loggers.in_memory_logger import InMemoryLogger
from tests.composer.plugins import HandRun


class DiskFull(InMemoryLogger):
    def log_metrics(self, metrics, step=None):
        raise OSError("No space left on device")

    def batch_end(self, state, logger):
        raise OSError("No space left on device")


def test_it_is_warned_about_once_and_the_others_hear_everything():
    memory = InMemoryLogger()
    run = HandRun(DiskFull(), memory, max_duration="3ba").loaded()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.fit()
    assert [str(each.message) for each in caught] == [
        "DiskFull failed (OSError: No space left on device). The run goes on without what it "
        "should have told; later failures of it are only logged at level DEBUG"
    ]
    assert [value for _, value in memory.data["time/batch"]] == [0, 1, 2]
    run.close()


class Uploads(DiskFull):
    may_stop_training = True


def test_one_that_carries_checkpoints_may_stop_the_run():
    run = HandRun(Uploads(), max_duration="3ba").loaded()
    with pytest.raises(OSError, match="No space left"):
        run.fit()
    run.close()


class CannotStart(InMemoryLogger):
    def init(self, state, logger):
        raise OSError("Permission denied")


def test_one_that_cannot_start_is_told_before_training():
    with pytest.raises(OSError, match="Permission denied"):
        HandRun(CannotStart())


def test_a_file_that_is_lost_on_the_way(tmp_path):
    logger = FileLogger(str(tmp_path / "log.txt"), capture_stdout=False, capture_stderr=False)
    run = HandRun(logger, max_duration="2ba").loaded()
    run.engine.run_event(Event.FIT_START)
    logger.file.close()
    with pytest.warns(UserWarning, match="FileLogger failed"):
        run.train_batch(run.loader[0])
    run.close()
    assert run.state.timestamp.batch == 1
