"""Composer schedules behind torch's interface, and torch schedulers stretched."""

import types

import pytest
import torch
from torch.optim import lr_scheduler as torch_lr

from composer.core.time import Time, Timestamp
from composer.optim import DecoupledSGDW, LinearScheduler, compile_composer_scheduler
from composer.optim.torch_schedulers import scale_pytorch_scheduler


def _optimizer(lr=0.4):
    return DecoupledSGDW([torch.nn.Parameter(torch.ones(1))], lr=lr)


def _state(*optimizers):
    return types.SimpleNamespace(
        max_duration=Time(4, "ba"),
        timestamp=Timestamp(),
        dataloader_len=Time(4, "ba"),
        optimizers=list(optimizers),
    )


def test_reads_the_clock_of_the_run():
    state = _state(_optimizer())
    scheduler = compile_composer_scheduler(LinearScheduler(), state)
    rates = []
    for _ in range(4):
        rates.append(scheduler.get_last_lr()[0])
        state.optimizers[0].step()
        scheduler.step()
        state.timestamp = state.timestamp.to_next_batch()
    # The schedule is asked before the clock moves on, so the first rate serves two batches.
    assert rates == pytest.approx([0.4, 0.4, 0.3, 0.2])


def test_each_group_scales_its_own_rate():
    optimizer = DecoupledSGDW(
        [
            {"params": [torch.nn.Parameter(torch.ones(1))], "lr": 1.0},
            {"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.1},
        ],
        lr=0.5,
    )
    state = _state(optimizer)
    state.timestamp = Timestamp(batch=1)
    scheduler = compile_composer_scheduler(LinearScheduler(), state)
    assert scheduler.get_last_lr() == pytest.approx([0.75, 0.075])


def test_plain_functions_are_schedules_at_ratio_one():
    state = _state(_optimizer())
    assert compile_composer_scheduler(lambda state: 0.5, state).get_last_lr() == [0.2]
    with pytest.raises(ValueError, match="scale_schedule_ratio=0.5"):
        compile_composer_scheduler(lambda state: 0.5, state, ssr=0.5)


def test_several_optimizers_are_refused():
    with pytest.raises(NotImplementedError, match="exactly one optimizer"):
        compile_composer_scheduler(LinearScheduler(), _state(_optimizer(), _optimizer()))


def test_state_survives_a_round_trip():
    state = _state(_optimizer())
    scheduler = compile_composer_scheduler(LinearScheduler(), state)
    state.optimizers[0].step()
    scheduler.step()
    other = compile_composer_scheduler(LinearScheduler(), _state(_optimizer()))
    other.load_state_dict(scheduler.state_dict())
    assert other.last_epoch == 1


@pytest.mark.parametrize("ssr", [0.5, 2.0])
@pytest.mark.parametrize(
    "make",
    [
        lambda o, r: torch_lr.StepLR(o, int(4 * r), 0.5),
        lambda o, r: torch_lr.MultiStepLR(o, [int(4 * r), int(8 * r)], 0.5),
        lambda o, r: torch_lr.CosineAnnealingLR(o, int(12 * r)),
        lambda o, r: torch_lr.CosineAnnealingWarmRestarts(o, int(6 * r)),
        lambda o, r: torch_lr.ExponentialLR(o, 0.7 ** (1 / r)),
    ],
)
def test_torch_schedulers_are_stretched(make, ssr):
    scaled, expected = make(_optimizer(), 1), make(_optimizer(), ssr)
    scale_pytorch_scheduler(scaled, ssr)
    for _ in range(10):
        for scheduler in (scaled, expected):
            scheduler.optimizer.step()
            scheduler.step()
        assert scaled.get_last_lr() == pytest.approx(expected.get_last_lr())


def test_what_cannot_be_stretched():
    scheduler = torch_lr.LambdaLR(_optimizer(), lambda _: 1.0)
    scale_pytorch_scheduler(scheduler, 1.0)
    with pytest.raises(ValueError, match="LambdaLR"):
        scale_pytorch_scheduler(scheduler, 0.5)
    with pytest.raises(ValueError, match="must be positive"):
        scale_pytorch_scheduler(scheduler, 0)
