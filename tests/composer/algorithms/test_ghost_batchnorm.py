"""Ghost batch norm equals that of the last upstream releases."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from composer.algorithms import GhostBatchNorm, NoMatchError
from composer.algorithms.ghost_batchnorm import (
    GhostBatchNorm1d,
    GhostBatchNorm2d,
    GhostBatchNorm3d,
    apply_ghost_batchnorm,
)
from composer.core.event import Event
from tests.composer.algorithms.surgery import Golden, apply_at, golden_fact


def test_equals_the_record():
    golden = Golden("ghost_bn")
    model = nn.Sequential(nn.BatchNorm2d(3))
    apply_ghost_batchnorm(model, int(golden["ghost"]))
    torch.testing.assert_close(model(golden["x"]), golden["out"], atol=1e-5, rtol=0)
    assert sorted(model.state_dict()) == golden_fact("ghost_keys")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, golden[f"w_after.{name}"], atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", [4, 5, 8])
def test_parts_are_normed_alone(size):
    model = nn.Sequential(nn.BatchNorm1d(3))
    apply_ghost_batchnorm(model, size)
    x = torch.randn(8, 3)
    parts = [
        nn.functional.batch_norm(part, None, None, training=True) for part in x.chunk(-(-8 // size))
    ]
    torch.testing.assert_close(model(x), torch.cat(parts))
    assert model[0].batchnorm.momentum == 0.1


def test_evaluation_uses_running_statistics():
    model = nn.Sequential(nn.BatchNorm1d(3))
    apply_ghost_batchnorm(model, 4)
    model(torch.randn(8, 3))
    x = torch.randn(2, 3)  # fewer than a ghost batch, as an evaluation's last batch may have
    assert torch.equal(model.eval()(x), model[0].batchnorm(x))
    with pytest.raises(ValueError, match="smaller than ghost_batch_size=4"):
        model.train()(x)


def test_cumulative_momentum_is_kept():
    model = nn.Sequential(nn.BatchNorm1d(3, momentum=None))
    apply_ghost_batchnorm(model, 4)
    x = torch.randn(8, 3)
    model(x)
    torch.testing.assert_close(model[0].batchnorm.running_mean, x.mean(dim=0))


def test_algorithm():
    model = nn.Sequential(
        nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [id(parameter) for parameter in model.parameters()]
    _, logger = apply_at(GhostBatchNorm(), model.eval(), optimizers=[optimizer])
    kinds = [GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d, nn.SyncBatchNorm]
    assert [type(layer) for layer in model] == kinds
    assert not model[0].training
    assert [id(parameter) for parameter in optimizer.param_groups[0]["params"]] == before
    assert logger.hparams == {"GhostBatchNorm/num_new_modules": 3}
    assert repr(GhostBatchNorm()) == "GhostBatchNorm(ghost_batch_size=32)"
    with pytest.raises(NoMatchError, match="BatchNorm1d"):
        apply_at(GhostBatchNorm(), nn.Linear(2, 2))
    with pytest.raises(ValueError, match="at least 1"):
        GhostBatchNorm(0)


def test_another_size_takes_the_place_of_the_first():
    model = nn.Sequential(nn.BatchNorm1d(3))
    norm = model[0]
    apply_ghost_batchnorm(model, 4)
    algorithm = GhostBatchNorm(2)
    algorithm.apply(Event.INIT, SimpleNamespace(model=model, optimizers=[]))  # needs no logger
    assert model[0].ghost_batch_size == 2 and model[0].batchnorm is norm
