"""Schedule-free AdamW against the recurrences of its paper, and the average where it is used."""

from pathlib import Path
from typing import Any

import pytest
import torch

from composer.algorithms import ScheduleFree
from composer.checkpoint.monolithic import torch_load_with_validation
from composer.optim import ScheduleFreeAdamW
from tests.composer.algorithms.test_ema import Sees, flat
from tests.composer.optim.references import (
    Model,
    resumed_in_shards,
    sharded_steps,
    steps,
    weights,
)
from tests.cross.algorithm_models import trainer
from tests.launch import run_ranks


def made(model: torch.nn.Module) -> torch.optim.Optimizer:
    return ScheduleFreeAdamW(model.parameters(), lr=0.02, weight_decay=1e-3)


def test_the_recurrences() -> None:
    model = Model(torch.float64)
    optimizer = ScheduleFreeAdamW(model.parameters(), lr=0.02, betas=(0.8, 0.99), weight_decay=0.01)
    rates = [0.0, 0.01, 0.02, 0.02, 0.015]
    z, x = weights(model), weights(model)
    squares = {name: torch.zeros_like(value) for name, value in z.items()}
    for step, rate in enumerate(rates, 1):
        optimizer.param_groups[0]["lr"] = rate
        [gradients] = steps(model, optimizer, 1)
        total = sum(each**2 for each in rates[:step])
        share = rate**2 / total if total else 0.0
        for name, gradient in gradients.items():
            y = 0.2 * z[name] + 0.8 * x[name]
            squares[name] = 0.99 * squares[name] + 0.01 * gradient**2
            root = (squares[name] / (1 - 0.99**step)).sqrt() + 1e-8
            z[name] = z[name] - rate * gradient / root - 0.01 * (rate / 0.02) * y
            x[name] = (1 - share) * x[name] + share * z[name]
            found = model.get_parameter(name).detach()
            torch.testing.assert_close(found, 0.2 * z[name] + 0.8 * x[name])
    before = weights(model)
    optimizer.eval()
    optimizer.eval()
    for name, value in weights(model).items():
        torch.testing.assert_close(value, x[name])
    with pytest.raises(RuntimeError, match=r"call optimizer.train\(\)"):
        optimizer.step()
    optimizer.train()
    for name, value in weights(model).items():
        assert torch.equal(value, before[name]), "the way back is exact"


def test_it_finds_the_minimum_of_a_parabola_at_a_constant_rate() -> None:
    weight = torch.nn.Parameter(torch.full((500,), 5.0))
    optimizer = ScheduleFreeAdamW([weight], lr=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(600):
        weight.grad = (weight - 1.0).detach() + torch.randn(500, generator=generator)
        optimizer.step()
    optimizer.eval()
    error = (weight.detach() - 1.0).square().mean().sqrt()
    stepped = (optimizer.state[weight]["stepped"] - 1.0).square().mean().sqrt()
    assert error < 0.1 < 2 * error < stepped, (error, stepped)


def test_the_trainer_evaluates_saves_and_keeps_the_average(tmp_path: Path) -> None:
    sees, plain = Sees(), Sees()
    settings: dict[str, Any] = {"optimizer": made, "run_name": "r"}
    run = trainer(
        "mlp", [], callbacks=sees, save_folder=str(tmp_path), save_interval="2ba", **settings
    )
    assert [type(each) for each in run.state.algorithms] == [ScheduleFree]
    run.fit()
    alone = trainer("mlp", [], callbacks=plain, eval_interval=0, **settings)
    alone.fit()
    optimizer: Any = alone.state.optimizers[0]
    for ours, theirs in zip(sees.stepped, plain.stepped, strict=True):
        assert torch.equal(ours, theirs), "training is the same to the bit"
    # The end of training has put the average into the model: x = (y - (1 - beta) z) / beta.
    z = torch.cat([optimizer.state[p]["stepped"].flatten() for p in alone.state.model.parameters()])
    average = (plain.stepped[-1] - 0.1 * z.double()) / 0.9
    torch.testing.assert_close(flat(alone.state.model), average, rtol=0, atol=1e-6)
    torch.testing.assert_close(sees.evaluated[-1], average, rtol=0, atol=1e-6)
    saved = torch_load_with_validation(tmp_path / "ep1-ba4-rank0.pt")["state"]["model"]
    kept = torch.cat([value.flatten().double() for value in saved.values()])
    assert torch.equal(kept, sees.evaluated[3])
    run.eval()
    torch.testing.assert_close(flat(run.state.model), average, rtol=0, atol=1e-6)
    run.fit(duration="1ba")
    assert torch.equal(sees.started[6], sees.stepped[5])


def test_it_resumes_from_one_file(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"optimizer": made, "save_folder": str(tmp_path)}
    settings |= {"save_interval": "2ba", "save_overwrite": True, "run_name": "run"}
    whole = trainer("mlp", [], **settings)
    whole.fit()
    resumed = trainer("mlp", [], load_path=str(tmp_path / "ep1-ba4-rank0.pt"), **settings)
    resumed.fit()
    torch.testing.assert_close(
        flat(resumed.state.model), flat(whole.state.model), rtol=0, atol=1e-6
    )


@pytest.mark.slow
def test_sharded_it_is_that_of_one_process_and_resumes(tmp_path: Path) -> None:
    alone = Model()
    steps(alone, made(alone), 4)
    for found in run_ranks(sharded_steps, 2, made):
        for name, value in weights(alone).items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)
    for whole, resumed in run_ranks(resumed_in_shards, 2, made, str(tmp_path)):
        torch.testing.assert_close(whole, resumed, rtol=0, atol=1e-6)


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match="the first of them above 0"):
        ScheduleFreeAdamW(Model().parameters(), betas=(0.0, 0.9))
