import pytest
import torch

from composer.callbacks.nan_monitor import NaNMonitor
from tests.composer.plugins import HandRun

GOOD, BAD = torch.tensor(1.0), torch.tensor(float("nan"))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (BAD, "Train loss contains a NaN."),
        ((GOOD, BAD), "Train loss contains a NaN."),
        ({"total": GOOD, "aux": BAD}, "Train loss aux contains a NaN."),
    ],
)
def test_nan_raises(loss, message):
    run = HandRun()
    run.state.loss = loss
    with pytest.raises(RuntimeError, match=message):
        NaNMonitor().after_loss(run.state, run.logger)


@pytest.mark.parametrize("loss", [GOOD, [GOOD, GOOD], {"total": GOOD}])
def test_a_good_loss_passes(loss):
    run = HandRun()
    run.state.loss = loss
    NaNMonitor().after_loss(run.state, run.logger)


def test_something_that_is_no_loss():
    run = HandRun()
    run.state.loss = "1.0"
    with pytest.raises(TypeError):
        NaNMonitor().after_loss(run.state, run.logger)
