"""Blocks are left out as often as asked, and the rates are those of the last upstream releases."""

import copy

import pytest
import torch
from torch import nn

from composer.algorithms import NoMatchError, StochasticDepth
from composer.algorithms.stochastic_depth import StochasticBlock, apply_stochastic_depth
from composer.algorithms.stochastic_depth.stochastic_layers import (
    block_stochastic_forward,
    make_resnet_bottleneck_stochastic,
    sample_stochastic_forward,
)
from composer.core.duration import Time
from composer.core.event import Event
from tests.composer.algorithms.surgery import Bottleneck, apply_at, golden_fact


def blocks(count: int = 3, **kwargs) -> nn.Sequential:
    return nn.Sequential(*(Bottleneck(**kwargs) for _ in range(count)))


@pytest.mark.parametrize("method", ["block", "sample"])
@pytest.mark.parametrize("distribution", ["linear", "uniform"])
def test_rates_equal_the_record(method, distribution):
    recorded = golden_fact("stochastic_depth_drop_rates_resnet50")[f"{method}_{distribution}"]
    model = blocks(16)
    apply_stochastic_depth(model, "ResNetBottleneck", method, 0.2, distribution)
    assert [block.drop_rate for block in model] == pytest.approx(recorded, abs=1e-7)


@pytest.mark.parametrize("method", ["block", "sample"])
@pytest.mark.parametrize("shortcut", [False, True])
def test_block(method, shortcut):
    torch.manual_seed(2)
    downsample = nn.Conv2d(4, 4, 1) if shortcut else None
    plain = Bottleneck(downsample=downsample).eval()
    model = nn.Sequential(copy.deepcopy(plain))
    keys = list(model.state_dict())
    apply_stochastic_depth(model, "ResNetBottleneck", method, 0.4, "uniform")
    assert list(model.state_dict()) == keys
    x = torch.rand(64, 4, 3, 3)
    passed = x if downsample is None else downsample(x)
    expected = torch.relu(0.6 * plain.main(x) + passed)
    torch.testing.assert_close(copy.deepcopy(model)(x), expected)  # as EMA copies it

    kept, dropped = plain(x), x if downsample is None else torch.relu(passed)
    stochastic = model.train()[0]
    for norm in (stochastic.bn1, stochastic.bn2, stochastic.bn3):
        norm.eval()  # so that what it computes can be compared
    counts = [0, 0]
    for _ in range(2 if method == "sample" else 60):
        out = model(x)
        is_dropped = (out - dropped).abs().amax(dim=(1, 2, 3)) < 1e-5
        is_kept = (out - kept).abs().amax(dim=(1, 2, 3)) < 1e-5
        assert torch.equal(is_dropped, ~is_kept)
        if method == "block":
            assert len(is_dropped.unique()) == 1
        counts[0] += int(is_dropped.sum())
        counts[1] += len(x)
    assert 0.25 < counts[0] / counts[1] < 0.55


def test_gradients_of_dropped_blocks():
    model = blocks(1).train()
    apply_stochastic_depth(model, "ResNetBottleneck", "block", 1.0)
    x = torch.rand(2, 4, 3, 3, requires_grad=True)
    model(x).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    assert model[0].conv1.weight.grad is None
    assert StochasticDepth("ResNetBottleneck").find_unused_parameters
    assert not StochasticDepth("ResNetBottleneck", "sample").find_unused_parameters


def test_names_of_upstream():
    model = blocks(2).eval()
    make_resnet_bottleneck_stochastic(model[1], 1, 4, 0.4, "linear", "sample")
    assert type(model[0]) is Bottleneck and model[1].drop_rate == pytest.approx(0.2)
    x = torch.rand(2, 4, 3, 3)
    assert torch.equal(sample_stochastic_forward(model[1], x), model[1](x))
    assert torch.equal(block_stochastic_forward(model[1], x), model[1](x))
    algorithm = StochasticDepth("ResNetBottleneck")
    apply_at(algorithm, blocks(3))
    assert algorithm.num_stochastic_layers == 3


def test_resnet_of_transformers():
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=4, hidden_sizes=[8, 16], depths=[2, 1])
    model = ResNetModel(config).eval()
    plain = copy.deepcopy(model)
    pixels = torch.randn(2, 3, 32, 32)
    _, logger = apply_at(StochasticDepth("ResNetBottleneck", drop_rate=0.0), model)
    assert logger.hparams == {
        "stochastic_depth/num_stochastic_layers": 3,
        "stochastic_depth/drop_rate": 0.0,
    }
    expected = plain(pixels).last_hidden_state
    torch.testing.assert_close(model(pixels).last_hidden_state, expected)
    model.train()(pixels)
    apply_stochastic_depth(model, "ResNetBottleneck", drop_rate=1.0, drop_distribution="uniform")
    assert not torch.allclose(model.eval()(pixels).last_hidden_state, expected)


@pytest.mark.parametrize(
    ("warmup", "rate"), [(0.5, 0.1), ("4ba", 0.05), (Time(2, "ep"), 0.2), ("1dur", 0.05)]
)
def test_warmup(warmup, rate):
    algorithm = StochasticDepth(
        "ResNetBottleneck", drop_rate=0.2, drop_distribution="uniform", drop_warmup=warmup
    )
    model = blocks(2)
    apply_at(algorithm, model)
    elapsed = {"ba": Time(1, "ba"), "ep": Time(5, "ep")}
    _, logger = apply_at(
        algorithm,
        model,
        Event.BATCH_START,
        timestamp=type("Clock", (), {"get": lambda self, unit: elapsed[unit.value]})(),
        get_elapsed_duration=lambda: Time(0.25, "dur"),
    )
    assert logger.metrics == {"stochastic_depth/drop_rate": pytest.approx(rate)}
    assert [block.drop_rate for block in model] == pytest.approx([rate, rate])


def test_settings():
    ours = StochasticDepth("ResNetBottleneck", drop_warmup="2ep")
    assert repr(ours) == (
        "StochasticDepth(target_layer_name='ResNetBottleneck',stochastic_method='block',"
        "drop_rate=0.2,drop_distribution='linear',drop_warmup='2ep')"
    )
    assert not StochasticDepth("ResNetBottleneck").match(Event.BATCH_START, None)
    for wrong in (
        {"target_layer_name": "Linear"},
        {"stochastic_method": "layer"},
        {"drop_distribution": "cosine"},
        {"drop_rate": 1.5},
        {"drop_rate": -0.1},
        {"stochastic_method": "sample", "drop_warmup": 0.1},
    ):
        with pytest.raises(ValueError, match="drop_|target_|stochastic_"):
            StochasticDepth(**{"target_layer_name": "ResNetBottleneck", **wrong})
    with pytest.raises(NoMatchError, match="ResNetBottleneck"):
        apply_at(StochasticDepth("ResNetBottleneck"), nn.Linear(2, 2))
    model = blocks()
    apply_at(StochasticDepth("ResNetBottleneck", "sample"), model)
    assert all(isinstance(block, StochasticBlock) for block in model)
