"""Rotary frequencies against transformers', and xPos."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from llmfoundry.models.layers.rotary import RotaryEmbedding, gen_rotary_embedding
from llmfoundry.models.mpt.config import MPTConfig

SCALINGS: dict[str, dict[str, Any]] = {
    "none": {"type": "no_scaling"},
    "default": {"rope_type": "default"},
    "linear": {"type": "linear", "factor": 4.0},
    "linear by its new key": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"type": "dynamic", "factor": 2.0},
    "llama3": {
        "type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn by its own bounds": {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 128,
        "beta_fast": 8,
        "beta_slow": 2,
        "attention_factor": 0.9,
    },
}


def _ours(scaling: dict[str, Any], theta: float = 1e6) -> RotaryEmbedding:
    config = MPTConfig(
        d_model=64,
        n_heads=4,
        max_seq_len=128,
        attn_config={
            "rope": True,
            "rope_impl": "hf",
            "rope_theta": theta,
            "rope_hf_config": dict(scaling),
        },
    )
    again = MPTConfig(**config.to_dict())  # what an exported configuration says
    assert again.attn_config == config.attn_config
    attn = again.attn_config
    return gen_rotary_embedding(
        "hf", attn["rope_theta"], attn["rope_dail_config"], attn["rope_hf_config"], 128, 64, 4
    )


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("length", [128, 300])
def test_frequencies_are_transformers(name: str, length: int) -> None:
    """Field case B86."""
    scaling = dict(SCALINGS[name])
    ours = _ours(scaling)
    kind = scaling.pop("type", scaling.pop("rope_type", None))
    kind = {"no_scaling": "default"}.get(kind, kind)
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=128,
        rope_parameters={"rope_type": kind, "rope_theta": 1e6, **scaling},
    )
    theirs = LlamaRotaryEmbedding(config)
    positions = torch.arange(length)[None]
    cos, sin = theirs(torch.zeros(1, length, 64), positions)
    tables = ours(positions, length, torch.float32)
    torch.testing.assert_close(tables.q_cos[:, 0], cos, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(tables.q_sin[:, 0], sin, atol=2e-5, rtol=1e-5)


def test_xpos_products_depend_on_distance_only() -> None:
    rotary = RotaryEmbedding(8, 10000.0, 64, xpos_scale_base=16, follows_padding=False)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    products = []
    for start in (0, 7, 40):
        tables = rotary(torch.tensor([[start, start + 5]]), 64, torch.float32)
        rotated_q = tables.rotate_queries(q.expand(1, 1, 2, 8))[0, 0, 1]
        rotated_k = tables.rotate_keys(k.expand(1, 1, 2, 8))[0, 0, 0]
        products.append(rotated_q @ rotated_k)
    torch.testing.assert_close(products[0], products[1], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(products[0], products[2], atol=1e-5, rtol=1e-4)


def test_there_is_no_buffer_to_initialise() -> None:
    assert not list(RotaryEmbedding(8, 10000.0, 64).buffers())
    with pytest.raises(ValueError, match="dail or hf"):
        gen_rotary_embedding("x", 1.0, {}, {}, 8, 8, 1)
