"""FP8: which layers it changes, what it leaves alone, and how its numbers are rounded."""

import copy
import importlib.util
import warnings
from typing import Any

import pytest
import torch

from composer.algorithms import FP8, NoMatchError
from composer.algorithms.fp8.emulated_linear import EmulatedFloat8Linear, rounded
from composer.algorithms.fp8.fp8 import _convert_with_torchao
from composer.functional import apply_fp8
from composer.utils.import_helpers import MissingConditionalImportError
from tests.composer.algorithms.test_seq_length_curriculum import mpt

pytestmark = pytest.mark.filterwarnings("ignore:.*okenizer was not provided")


class Own(torch.nn.Linear):
    """Computes something else."""


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.ModuleDict(
        {
            "large": torch.nn.Linear(64, 32),
            "small": torch.nn.Linear(16, 16),
            "odd": torch.nn.Linear(60, 64),
            "own": Own(64, 64),
            "lm_head": torch.nn.Linear(64, 64),
        }
    )


def test_large_layers_whose_shape_kernels_take_and_not_the_head() -> None:
    assert apply_fp8(model(), min_elements=1024, emulate=True) == ["large"]
    assert apply_fp8(model(), min_elements=255, emulate=True) == ["large", "small"]
    assert apply_fp8(model(), 255, skip=["large"], emulate=True) == ["small", "lm_head"]
    chosen = apply_fp8(model(), filter=lambda layer, name: name == "odd", emulate=True)
    assert chosen == ["odd"]
    with pytest.raises(NoMatchError, match="no linear layer of more than 4194304 weights"):
        apply_fp8(model(), emulate=True)


def test_weights_and_marks_stay_and_the_model_computes_nearly_the_same() -> None:
    plain = mpt(d_model=64, no_bias=True)
    changed = copy.deepcopy(plain)
    parameters = dict(changed.named_parameters())
    names = apply_fp8(changed, min_elements=0, emulate=True)
    assert len(names) == 8 and not any("lm_head" in name for name in names)
    assert all(dict(changed.named_parameters())[name] is p for name, p in parameters.items())
    projection: Any = changed.get_submodule("model.transformer.blocks.0.ffn.down_proj")
    assert isinstance(projection, EmulatedFloat8Linear) and projection._is_residual
    tokens = torch.randint(0, 60, (2, 16))
    batch = {"input_ids": tokens, "labels": tokens}
    losses = [one.loss(one(batch), batch) for one in (plain, changed)]
    torch.testing.assert_close(losses[1], losses[0], rtol=0.02, atol=0)
    assert not torch.equal(losses[1], losses[0])


@pytest.mark.parametrize(
    ("kind", "largest", "step"), [("e4m3fn", 448, 2**-3), ("e5m2", 57344, 2**-2)]
)
def test_numbers_are_the_nearest_of_their_type_at_the_tensors_scale(
    kind: str, largest: float, step: float
) -> None:
    value = torch.tensor([-3.0, 3.0 * (1 + step / 2.1) / 2, 3.0 / largest, 0.0])
    found = rounded(value, getattr(torch, f"float8_{kind}"))
    half = value[1] * largest / 3.0
    exponent = 2.0 ** torch.floor(torch.log2(half))
    nearest = torch.round(half / exponent / step) * exponent * step * 3.0 / largest
    torch.testing.assert_close(found[0], value[0])
    torch.testing.assert_close(found[1], nearest)
    torch.testing.assert_close(found[2], value[2])
    assert found[3] == 0
    assert torch.equal(rounded(torch.zeros(3), torch.float8_e4m3fn), torch.zeros(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_rounded_operands(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    layer = torch.nn.Linear(32, 16)
    layer.__class__ = EmulatedFloat8Linear
    x = torch.randn(2, 5, 32, requires_grad=True)
    slope = torch.randn(2, 5, 16)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        y = layer(x)
    assert y.dtype is dtype
    y.backward(slope.to(dtype))
    x8 = rounded(x.detach().to(dtype), torch.float8_e4m3fn)
    w8 = rounded(layer.weight.detach().to(dtype), torch.float8_e4m3fn)
    g8 = rounded(slope.to(dtype), torch.float8_e5m2)
    expected = (x8 @ w8.T).to(dtype) + layer.bias.detach().to(dtype)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(x.grad, g8 @ w8)
    torch.testing.assert_close(layer.weight.grad, torch.einsum("bso,bsi->oi", g8, x8))
    torch.testing.assert_close(
        layer.bias.grad, slope.to(dtype).sum((0, 1)).float(), rtol=0.02, atol=0.05
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there may be fp8")
def test_without_a_gpu_it_says_what_to_do_and_changes_nothing() -> None:
    untouched = model()
    with pytest.raises(ValueError, match="emulate=True"):
        apply_fp8(untouched, min_elements=0)
    assert type(untouched["large"]) is torch.nn.Linear
    assert repr(FP8(min_elements=5)) == (
        "FP8(min_elements=5,skip=('lm_head',),filter=None,emulate=False)"
    )


@pytest.mark.skipif(importlib.util.find_spec("torchao") is not None, reason="it is installed")
def test_without_torchao_it_says_what_to_install() -> None:
    with pytest.raises(MissingConditionalImportError, match="torchao"):
        _convert_with_torchao(model(), ["large"])


def test_emulation_equals_that_of_torchao_and_the_conversion_keeps_everything() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        float8 = pytest.importorskip("torchao.float8")
    torch.manual_seed(2)
    ours = torch.nn.Sequential(torch.nn.Linear(64, 32))
    theirs = copy.deepcopy(ours)
    config = float8.Float8LinearConfig(emulate=True)
    float8.convert_to_float8_training(theirs, config=config)
    apply_fp8(ours, min_elements=0, emulate=True)
    x, slope = torch.randn(24, 64), torch.randn(24, 32)
    found = []
    for one in (ours, theirs):
        inputs = x.clone().requires_grad_()
        y = one(inputs)
        y.backward(slope)
        found.append((y, inputs.grad, one[0].weight.grad, one[0].bias.grad))
    for mine, other in zip(*found):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    converted = mpt(d_model=64)
    before = dict(converted.named_parameters())
    name = "model.transformer.blocks.0.ffn.down_proj"
    _convert_with_torchao(converted, [name])
    layer: Any = converted.get_submodule(name)
    assert type(layer) is not torch.nn.Linear and layer._is_residual
    assert all(p is before[key] for key, p in converted.named_parameters())
