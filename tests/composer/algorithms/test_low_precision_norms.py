"""Low-precision norms compute in autocast's dtype, and equal torch's without autocast."""

import pytest
import torch
from torch import nn

from composer.algorithms import LowPrecisionGroupNorm, LowPrecisionLayerNorm, NoMatchError
from composer.algorithms.low_precision_groupnorm import (
    LPGroupNorm,
    apply_low_precision_groupnorm,
)
from composer.algorithms.low_precision_layernorm import (
    LPLayerNorm,
    apply_low_precision_layernorm,
)
from composer.algorithms.warnings import NoEffectWarning
from composer.checkpoint.required_algorithms import parse_algorithm
from composer.core.event import Event
from composer.core.passes import sort_low_precision_layernorm_last
from tests.composer.algorithms.surgery import apply_at

CASES = [
    (LowPrecisionLayerNorm, LPLayerNorm, apply_low_precision_layernorm, lambda: nn.LayerNorm(8)),
    (LowPrecisionGroupNorm, LPGroupNorm, apply_low_precision_groupnorm, lambda: nn.GroupNorm(2, 8)),
]


@pytest.mark.parametrize(("algorithm", "low", "function", "make"), CASES)
def test_norm(algorithm, low, function, make):
    norm, x = make(), torch.randn(4, 8)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    model = nn.Sequential(norm)
    exact = model(x).detach()
    weight = norm.weight
    apply_at(algorithm(), model, precision="amp_bf16")
    assert type(model[0]) is low and model[0].weight is weight
    assert torch.equal(model(x), exact)  # without autocast there is nothing to lower
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), exact, atol=0.05, rtol=0.02)
    assert not torch.equal(out.float(), exact)
    # All of it is cast: what comes out is what torch makes of bf16 tensors.
    function_of = nn.functional.layer_norm if low is LPLayerNorm else nn.functional.group_norm
    shape = norm.normalized_shape if low is LPLayerNorm else norm.num_groups
    tensors = [tensor.to(torch.bfloat16) for tensor in (norm.weight, norm.bias)]
    assert torch.equal(out, function_of(x.to(torch.bfloat16), shape, *tensors, norm.eps))
    out.sum().backward()
    assert weight.grad is not None
    function(model, "amp_bf16")  # a second time is no fault


@pytest.mark.parametrize(("algorithm", "low", "function", "make"), CASES)
def test_what_is_left_alone(algorithm, low, function, make):
    class Own(type(make())):
        def forward(self, input):
            return input

    model = nn.Sequential(make())
    for precision in (None, "fp32"):
        with pytest.warns(NoEffectWarning, match="amp_fp16 or amp_bf16"):
            assert function(model, precision) is model
    assert not isinstance(model[0], low)
    with pytest.raises(NoMatchError, match=low.__name__[2:]):
        function(nn.Sequential(Own(*((8,) if low is LPLayerNorm else (2, 8)))), "amp_bf16")
    with pytest.warns(NoEffectWarning, match="changed nothing"):
        function(nn.Linear(2, 2), "amp_fp16", on_no_match="warn")


def test_norm_is_made_as_ever():
    norm = LPLayerNorm(8, 1e-3, True, torch.device("cpu"), torch.bfloat16, bias=False)
    assert norm.eps == 1e-3 and norm.weight.dtype is torch.bfloat16 and norm.bias is None
    assert LPLayerNorm(8).bias is not None


def test_norm_without_parameters():
    model = nn.Sequential(nn.LayerNorm(8, elementwise_affine=False))
    apply_low_precision_layernorm(model, "amp_bf16")
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.randn(2, 8)).dtype == torch.bfloat16


@pytest.mark.parametrize("algorithm", [LowPrecisionLayerNorm, LowPrecisionGroupNorm])
def test_when_it_acts(algorithm):
    made = algorithm(apply_at=Event.AFTER_LOAD)
    assert made.match(Event.AFTER_LOAD, None) and not made.match(Event.INIT, None)
    assert algorithm("before_load").apply_at == Event.BEFORE_LOAD
    with pytest.raises(ValueError, match=r"Event\.INIT"):
        algorithm(apply_at=Event.FIT_START)
    text = repr(made)
    assert text == f"{algorithm.__name__}(apply_at=Event.AFTER_LOAD)"
    assert parse_algorithm(text).apply_at == Event.AFTER_LOAD
    with pytest.raises(ValueError, match="literal"):
        parse_algorithm(text.replace("AFTER_LOAD", "__class__"))
    others = [object(), object()]
    assert sort_low_precision_layernorm_last([made, *others], Event.INIT)[-1] is made


def test_models_of_transformers():
    from transformers import BertConfig, BertModel, GPT2Config, GPT2Model

    sizes = {"vocab_size": 32, "bos_token_id": 0, "eos_token_id": 0}
    gpt2 = GPT2Model(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=8, **sizes))
    bert = BertModel(
        BertConfig(
            vocab_size=32,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
        )
    )
    for model in (gpt2, bert):
        apply_low_precision_layernorm(model, "amp_bf16")
        assert sum(isinstance(module, LPLayerNorm) for module in model.modules()) == 3
