"""Norms, FFNs and builders."""

import pytest
import torch
import torch.nn.functional as F

from llmfoundry.layers_registry import attention_classes, fcs, ffns, ffns_with_norm, norms
from llmfoundry.models.layers.attention import GroupedQueryAttention
from llmfoundry.models.layers.blocks import MPTBlock
from llmfoundry.models.layers.ffn import MPTGLU, resolve_ffn_act_fn, resolve_ffn_hidden_size
from llmfoundry.models.layers.layer_builders import build_ffn, build_norm
from llmfoundry.models.layers.norm import TritonRMSNorm
from llmfoundry.utils.registry_utils import save_registry

NORMS = [
    "layernorm",
    "rmsnorm",
    "low_precision_layernorm",
    "low_precision_rmsnorm",
    "triton_rmsnorm",
]
ATTENTION = ["multihead_attention", "multiquery_attention", "grouped_query_attention"]


@pytest.mark.parametrize("name", NORMS)
def test_norms_equal_torch(name: str) -> None:
    norm, x = build_norm(name, 16, eps=1e-3), torch.randn(2, 3, 16)
    torch.nn.init.normal_(norm.weight)
    if "layernorm" in name:
        expected = F.layer_norm(x, (16,), norm.weight, norm.bias, 1e-3)
    else:
        expected = F.rms_norm(x, (16,), norm.weight, 1e-3)
    torch.testing.assert_close(norm(x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        low = norm(x)
    assert (low.dtype == torch.bfloat16) == (name == "low_precision_layernorm")
    torch.testing.assert_close(low.float(), expected, atol=0.1, rtol=0.02)


def test_triton_rmsnorm_takes_one_number() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        TritonRMSNorm([4, 4])


def test_activations() -> None:
    x = torch.randn(10)
    tanh = {"name": "gelu", "approximate": "tanh"}
    quick = {"name": "quick_gelu"}
    torch.testing.assert_close(resolve_ffn_act_fn()(x), F.gelu(x))
    torch.testing.assert_close(resolve_ffn_act_fn(tanh)(x), F.gelu(x, approximate="tanh"))
    torch.testing.assert_close(resolve_ffn_act_fn(quick)(x), x * torch.sigmoid(1.702 * x))
    squared = resolve_ffn_act_fn({"name": "relu_squared"})
    assert squared(torch.tensor([-2.0, 0.0, 3.0])).tolist() == [0.0, 0.0, 9.0]
    assert resolve_ffn_hidden_size(10, 2.5) == 25
    assert resolve_ffn_hidden_size(10, 2.5, ffn_hidden_size=7) == 7


def test_gated_ffn() -> None:
    ffn = build_ffn("mptglu", 8, 2, None, True, {"ffn_act_fn": {"name": "silu"}})
    assert isinstance(ffn, MPTGLU)
    x = torch.randn(2, 8)
    expected = ffn.down_proj(F.silu(ffn.gate_proj(x)) * ffn.up_proj(x))
    torch.testing.assert_close(ffn(x), expected)
    with pytest.raises(TypeError, match="ffn_hidden"):
        build_ffn("mptglu", 8, 2, None, True, {"ffn_hidden": 3})


def test_registered_parts_are_used() -> None:
    with save_registry():

        class Doubled(torch.nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return 2 * super().forward(x)

        class OwnNorm(torch.nn.Module):
            def __init__(self, d_model: int, **_: object) -> None:
                super().__init__()
                self.norm = torch.nn.LayerNorm(d_model)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.norm(x)

        fcs.register("doubled", func=Doubled)
        ffns_with_norm.register("own_norm", func=lambda d_model, **kwargs: OwnNorm(d_model))
        block = MPTBlock(8, 2, 2, fc_type={"name": "doubled"}, ffn_config={"ffn_type": "own_norm"})
        assert isinstance(block.attn.out_proj, Doubled)
        assert block.norm_2 is None and block.ffn._has_norm
    assert "doubled" not in fcs


def test_names() -> None:
    assert list(norms.get_all()) == NORMS
    assert {"mptmlp", "mptglu"} <= set(ffns.get_all())
    assert list(attention_classes.get_all()) == ATTENTION


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"kv_n_heads": 0}, "greater than zero"),
        ({"kv_n_heads": 8}, "less than or equal"),
        ({"kv_n_heads": 3}, "divisible"),
        ({"kv_n_heads": 2, "qk_ln": True, "qk_gn": True}, "Only one of qk_ln"),
        ({"kv_n_heads": 2, "reuse_kv_layer_idx": 0, "reuse_kv_x_layer_idx": 0}, "Only one of"),
        ({"kv_n_heads": 2, "reuse_kv_x_layer_idx": 0}, "fused_qkv: false"),
        ({"kv_n_heads": 2, "kv_dim": 3}, "fused_qkv: false"),
    ],
)
def test_impossible_attention(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GroupedQueryAttention(d_model=16, n_heads=4, **kwargs)
