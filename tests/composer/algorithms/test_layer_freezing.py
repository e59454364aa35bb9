"""Which layers are frozen when, and what is left to the optimizer."""

import json
from typing import Any

import pytest
import torch

from composer.algorithms import LayerFreezing
from composer.algorithms.layer_freezing.layer_freezing import _freeze_schedule
from composer.core.callback import Callback
from composer.functional import freeze_layers
from composer.loggers import InMemoryLogger
from tests.composer.algorithms.golden_runs import (
    GOLDEN,
    RECORDS,
    assert_as_recorded,
    run_as_recorded,
)
from tests.cross.algorithm_models import trainer

FUNCTIONAL = dict(json.loads((GOLDEN / "functional.json").read_text()))


class Trained(Callback):
    def __init__(self) -> None:
        self.numbers: list[int] = []

    def epoch_end(self, state: Any, logger: Any) -> None:
        self.numbers.append(sum(p.requires_grad for p in state.model.parameters()))


@pytest.mark.parametrize(
    ("name", "settings"),
    [("layer_freezing", {"freeze_start": 0.0}), ("layer_freezing_default", {})],
)
def test_the_recorded_runs(name: str, settings: dict[str, Any]) -> None:
    trained = Trained()
    run, note = run_as_recorded(name, LayerFreezing(**settings), trained)
    record = RECORDS[name]
    assert trained.numbers == record["trainable_param_tensors_at_epoch_end"]
    # The recorded norms go on counting the last gradients of frozen layers; ours are gone.
    frozen_from = next(i for i, n in enumerate(trained.numbers) if n < 6) + 1
    first = 4 * frozen_from
    assert note.norms[:first] == pytest.approx(record["grad_norm_before_step"][:first], rel=1e-4)
    assert note.norms[first] < record["grad_norm_before_step"][first]
    note.norms = record["grad_norm_before_step"]
    assert_as_recorded(name, run, note)


def test_the_recorded_schedule() -> None:
    for elapsed, start, level, share in FUNCTIONAL["freeze_schedule"]:
        assert _freeze_schedule(elapsed, start, level) == pytest.approx(share)


def test_the_recorded_layers() -> None:
    for row in FUNCTIONAL["freeze_layers"]:
        nn = torch.nn
        inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), inner, nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        depth, share = freeze_layers(model, optimizer, row["duration"], 0.0, 1.0)
        assert [float(depth), share] == pytest.approx(row["ret"])
        found = {name: p.requires_grad for name, p in model.named_parameters()}
        assert found == row["requires_grad"]
        assert len(optimizer.param_groups[0]["params"]) == row["n_opt_params"]
        assert len(optimizer.state) == row["n_opt_params"], "no moments of frozen layers are kept"


def test_a_shared_weight_is_trained_with_the_last_that_has_it() -> None:
    first, last = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2)
    last.weight = first.weight
    model = torch.nn.Sequential(first, torch.nn.Linear(2, 2), last)
    freeze_layers(model, torch.optim.SGD(model.parameters(), lr=0.1), 1.0)
    assert [p.requires_grad for p in model.parameters()] == [True, False, False, True]


def test_it_logs_what_it_froze() -> None:
    logger = InMemoryLogger()
    run = trainer("mlp", [LayerFreezing(0.0)], loggers=logger)
    run.fit()
    values = logger.get_timeseries("layer_freezing/layers_frozen")
    assert list(values["layer_freezing/layers_frozen"]) == [1, 2]
    assert [v for _, v in logger.data["layer_freezing/percentage_frozen"]] == [0.5, 1.0]
    assert LayerFreezing().find_unused_parameters


@pytest.mark.parametrize("name", ["freeze_start", "freeze_level"])
def test_wrong_settings(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=1.5 must be between 0 and 1"):
        LayerFreezing(**{name: 1.5})
