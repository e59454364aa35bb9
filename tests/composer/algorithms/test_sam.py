"""SAM takes the gradient where it says, and the steps that it says."""

from pathlib import Path
from typing import Any

import pytest
import torch

from composer.algorithms import SAM
from composer.algorithms.sam import SAMOptimizer
from composer.core.event import Event
from composer.optim import DecoupledSGDW
from composer.optim.grad_scaler import ClosureGradScaler
from tests.composer.algorithms.golden_runs import assert_as_recorded, run_as_recorded
from tests.composer.plugins import HandRun
from tests.cross.algorithm_models import trainer


@pytest.mark.parametrize(
    ("name", "settings"), [("sam_1", {}), ("sam_2", {"rho": 0.1, "interval": 2})]
)
def test_the_recorded_runs(name: str, settings: dict[str, Any]) -> None:
    run, note = run_as_recorded(name, SAM(**settings))
    assert_as_recorded(name, run, note)
    assert isinstance(run.state.optimizers[0], SAMOptimizer)


def test_a_step_on_a_parabola() -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, -4.0], dtype=torch.float64))
    curvature = torch.tensor([1.0, 2.0], dtype=torch.float64)
    sam = SAMOptimizer(torch.optim.SGD([weight], lr=0.1), rho=0.5)

    def closure(**_: Any) -> torch.Tensor:
        sam.zero_grad()
        with torch.enable_grad():
            loss = (curvature * weight.square()).sum() / 2
        loss.backward()
        return loss.detach()

    start = weight.detach().clone()
    gradient = curvature * start
    expected = start - 0.1 * curvature * (start + 0.5 * gradient / gradient.norm())
    assert float(sam.step(closure)) == pytest.approx(float((curvature * start**2).sum() / 2))
    torch.testing.assert_close(weight.detach(), expected)


def test_the_halves_of_a_step() -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, -4.0]))
    start = weight.detach().clone()
    sam = SAMOptimizer(torch.optim.SGD([weight], lr=0.1), rho=0.5)
    weight.grad = torch.tensor([0.6, 0.8])
    sam.first_step()
    torch.testing.assert_close(weight.detach(), start + 0.5 * weight.grad)
    sam.sub_e_w()
    assert torch.equal(weight.detach(), start)
    sam.first_step()
    weight.grad = torch.ones(2)
    sam.second_step()
    torch.testing.assert_close(weight.detach(), start - 0.1)


@pytest.mark.parametrize("overflows_at", [1, 2])
def test_an_overflow_leaves_out_the_step_and_a_loss_of_zero_does_not(overflows_at: int) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    sam = SAMOptimizer(torch.optim.SGD([weight], lr=0.1))
    passes = 0

    def closure(**_: Any) -> float | None:
        nonlocal passes
        passes += 1
        weight.grad = torch.ones(2)
        return None if passes == overflows_at else 0.0

    assert sam.step(closure) is None
    assert torch.equal(weight.detach(), torch.ones(2)) and passes == overflows_at
    assert sam.step(closure) == 0.0
    assert not torch.equal(weight.detach(), torch.ones(2))


def test_groups_and_moments_are_the_wrapped_optimizers() -> None:
    layer = torch.nn.Linear(2, 2)
    base = DecoupledSGDW([layer.weight], lr=0.1, momentum=0.9)
    sam = SAMOptimizer(base)
    sam.add_param_group({"params": [layer.bias], "lr": 0.2})
    assert sam.param_groups is base.param_groups and len(base.param_groups) == 2
    layer(torch.ones(1, 2)).sum().backward()
    sam.step()
    saved = sam.state_dict()
    assert set(saved["state"]) == {0, 1}
    sam.load_state_dict(saved)
    assert sam.state is base.state and layer.weight in sam.state


@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled:UserWarning")
def test_it_wraps_once_and_replaces_the_scaler() -> None:
    sam = SAM()
    run = HandRun(algorithms=[sam])
    run.state.scaler = torch.amp.GradScaler("cpu", enabled=False)
    run.loaded()
    [optimizer] = run.state.optimizers
    assert isinstance(optimizer, SAMOptimizer)
    assert isinstance(optimizer.base_optimizer, torch.optim.SGD)
    assert isinstance(run.state.scaler, ClosureGradScaler)
    assert not sam.match(Event.AFTER_LOAD, run.state) and SAM().match(Event.AFTER_LOAD, run.state)
    run.close()


def test_the_next_look_is_due_when_it_was(tmp_path: Path) -> None:
    run = trainer(
        "mlp", [SAM(interval=2)], save_folder=str(tmp_path), save_interval="1ba", run_name="r"
    )
    run.fit(duration="3ba")
    run.close()
    again = SAM(interval=2)
    trainer("mlp", [again], load_path=str(tmp_path / "latest-rank0.pt"))
    assert again.state_dict()["global_step"] == [3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SAM(rho=-1.0), "should be non-negative"),
        (lambda: SAM(interval=0), "at least 1"),
        (lambda: SAMOptimizer(torch.optim.LBFGS([torch.nn.Parameter(torch.ones(1))])), "LBFGS"),
    ],
)
def test_wrong_settings(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
