"""Squeeze and excite equals that of the last upstream releases."""

import pytest
import torch
from torch import nn

from composer.algorithms import (
    BlurPool,
    GhostBatchNorm,
    NoMatchError,
    SqueezeExcite,
    SqueezeExcite2d,
    SqueezeExciteConv2d,
)
from composer.algorithms.squeeze_excite import apply_squeeze_excite
from tests.composer.algorithms.golden_runs import run_as_recorded
from tests.composer.algorithms.surgery import Golden, apply_at, golden_fact


def test_equals_the_record():
    golden = Golden("squeeze_excite")
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 1))
    apply_squeeze_excite(model, latent_channels=0.5, min_channels=8)
    assert repr(model) == golden_fact("squeeze_excite_repr")
    model.load_state_dict(golden.weights())
    torch.testing.assert_close(model(golden["x"]), golden["out"], atol=1e-5, rtol=0)


def test_run_together_with_others_as_recorded():
    # The new layers start at random, so that only what the optimizer holds can be compared.
    algorithms = [BlurPool(min_channels=4), SqueezeExcite(4, 4), GhostBatchNorm(4)]
    trainer, note = run_as_recorded("cnn_blurpool_se_ghostbn", algorithms)
    assert len(trainer.state.optimizers[0].param_groups[0]["params"]) == 10
    assert len(note.losses) == 4


def test_latent_channels():
    assert SqueezeExcite2d(64).latent_channels == 8
    assert SqueezeExcite2d(64, 16).latent_channels == 16
    assert SqueezeExcite2d(4, 0.1).latent_channels == 1
    assert SqueezeExciteConv2d(3, 8, 3, latent_channels=2)(torch.randn(1, 3, 5, 5)).shape == (
        1,
        8,
        3,
        3,
    )
    with pytest.raises(ValueError, match="positive"):
        SqueezeExcite2d(8, 0)


def test_algorithm():
    model = nn.Sequential(nn.Conv2d(3, 128, 1), nn.Conv2d(128, 128, 1)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    conv = model[1]
    _, logger = apply_at(SqueezeExcite(), model, optimizers=[optimizer])
    assert model[1].conv is conv
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert set(optimizer.param_groups[0]["params"]) == set(model.parameters())
    assert logger.hparams == {"squeeze_excite/num_squeeze_excite_layers": 1}
    assert repr(SqueezeExcite()) == "SqueezeExcite(latent_channels=64,min_channels=128)"
    with pytest.raises(NoMatchError, match="min_channels=128"):
        apply_at(SqueezeExcite(), nn.Conv2d(3, 8, 1))
