from composer.callbacks.free_outputs import FreeOutputs
from tests.composer.plugins import HandRun


def test_outputs_are_gone_after_the_loss():
    run = HandRun(FreeOutputs(), max_duration="1ba").loaded().fit()
    assert run.state.outputs.numel() == 0
    assert run.state.loss.numel() == 1
    run.close()
