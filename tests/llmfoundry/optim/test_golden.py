"""Lion and its kin, and the inverse-square-root schedule, equal what the last release recorded."""

import datetime
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import llmfoundry.optim
from composer.core.time import Time, Timestamp
from llmfoundry.optim.scheduler import InverseSquareRootWithWarmupScheduler

GOLDEN = Path(__file__).parents[2] / "golden"
RUNS = {
    run["name"]: run
    for run in json.loads((GOLDEN / "trainer" / "runs.json").read_text())
    if "lion" in run["name"]
}
MULTIPLIERS = json.loads((GOLDEN / "schedulers" / "multipliers.json").read_text())
RECORDS = [
    record for record in MULTIPLIERS["records"] if record["class"].startswith("InverseSquareRoot")
]


@pytest.mark.parametrize("name", RUNS)
def test_recorded_runs(name: str) -> None:
    run, data = RUNS[name], np.load(GOLDEN / "trainer" / "data.npz")
    net = torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 16),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 4),
    )
    net.load_state_dict({key: torch.from_numpy(data[f"mlp.{key}"]) for key in net.state_dict()})
    settings = {**run["optimizer_defaults"], "betas": tuple(run["optimizer_defaults"]["betas"])}
    optimizer = getattr(llmfoundry.optim, run["optimizer"])(net.parameters(), **settings)
    x, y = torch.from_numpy(data["X"]), torch.from_numpy(data["Y"])
    losses = []
    for step, (lr,) in enumerate(run["lr_used"]):
        rows = slice(step % 4 * 8, step % 4 * 8 + 8)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(run["loss"], abs=1e-5)
    final = np.load(GOLDEN / "trainer" / "final_weights.npz")
    recorded = [key for key in final.files if key.startswith(f"{name}|")]
    assert len(recorded) == 6
    for key in recorded:
        weights = net.state_dict()[key.split("|")[1].removeprefix("module.")]
        np.testing.assert_allclose(weights.numpy(), final[key], atol=1e-5, rtol=0)


def _state(record: dict[str, Any], batch: int) -> Any:
    per_epoch = MULTIPLIERS["batches_per_epoch"]
    return SimpleNamespace(
        max_duration=Time.from_input(record["effective_max_duration"]),
        dataloader_len=Time(per_epoch, "ba"),
        surplus_batches=0,
        timestamp=Timestamp(
            epoch=batch // per_epoch,
            batch=batch,
            sample=batch * MULTIPLIERS["batch_size"],
            token=batch * MULTIPLIERS["tokens_per_batch"],
            total_wct=datetime.timedelta(seconds=batch * MULTIPLIERS["seconds_per_batch"]),
        ),
    )


@pytest.mark.filterwarnings(
    "ignore::llmfoundry.utils.warnings.ExperimentalWarning", "ignore:.*warm-?up:UserWarning"
)
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record["kwargs"]))
def test_recorded_multipliers(record: dict[str, Any]) -> None:
    if "ctor_error" in record:
        with pytest.raises(ValueError):
            InverseSquareRootWithWarmupScheduler(**record["kwargs"])
        return
    scheduler = InverseSquareRootWithWarmupScheduler(**record["kwargs"])
    # A division by zero there is refused in words here.
    for batch, expected in enumerate(record["multipliers"]):
        state = _state(record, batch)
        if isinstance(expected, str):
            with pytest.raises(ValueError):
                scheduler(state, record["ssr"])
        else:
            assert scheduler(state, record["ssr"]) == pytest.approx(expected, abs=1e-9)
