import pytest

from composer.callbacks.free_outputs import FreeOutputs
from tests.composer.plugins import HandRun, Value


def test_outputs_are_dropped():
    run = HandRun(FreeOutputs(), max_duration="1ba").loaded().fit()
    assert run.state.outputs.numel() == 0
    assert run.state.loss.numel() == 1
    run.close()


def test_training_metrics_would_need_them():
    run = HandRun(FreeOutputs(), max_duration="1ba").loaded()
    run.state.train_metrics = {"m": Value(1.0)}
    with pytest.raises(ValueError, match="training metrics read them: m"):
        run.fit()
    run.close()
