"""Small MPTs that differ in positions, heads and blocks, for tests of what all must do alike."""

from typing import Any

import torch

from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig

IMPLEMENTATIONS = ("torch", "flash", "flex")
ROPE: dict[str, Any] = {"rope": True, "rope_impl": "hf"}
GROUPS: dict[str, Any] = {"attn_type": "grouped_query_attention", "kv_n_heads": 2}
TUNED: dict[str, Any] = {"attn_temperature_tuning": {"floor_scale": 2, "attn_scale": 0.5}}


def scaled(kind: str, **settings: Any) -> dict[str, Any]:
    """Returns rotary positions that are scaled."""
    return {**ROPE, "rope_hf_config": {"type": kind, "factor": 4.0, **settings}}


def overridden(**blocks: dict[str, Any]) -> dict[str, Any]:
    """Overrides the second block, and the third and fourth as a group, by names of settings."""
    names = [*blocks, *blocks][:2]
    order = [{"name": "default"}, {"order": [{"name": names[0]}, {"name": names[1]}]}]
    order.append({"name": names[0]})
    overrides = {name: {"attn_config": settings} for name, settings in blocks.items()}
    return {"n_layers": 4, "block_overrides": {"order": order, "overrides": overrides}}


LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 10,
}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "learned": ({}, {}),
    "alibi": ({"alibi": True}, {}),
    "alibi, window and groups": ({"alibi": True, "sliding_window_size": 3, **GROUPS}, {}),
    "xpos": ({"rope": True, "rope_dail_config": {"type": "xpos"}}, {}),
    "linear": (scaled("linear"), {}),
    "dynamic": (scaled("dynamic"), {}),
    "llama3": (scaled("llama3", **LLAMA3), {}),
    "yarn": (scaled("yarn", original_max_position_embeddings=10), {}),
    "temperature": ({**ROPE, **TUNED}, {}),
    "softcap": ({**ROPE, "attn_logit_softcapping": 0.5}, {}),
    "wide heads": ({**ROPE, "qk_gn": True}, {"head_dim": 12}),
    "narrow heads": ({"alibi": True, "qk_ln": True, **GROUPS}, {"head_dim": 4}),
    "reused keys and values": (
        {**ROPE, **GROUPS},
        overridden(
            reuse={"reuse_kv_layer_idx": -1, "sliding_window_size": 3},
            wide={"sliding_window_size": 5},
        ),
    ),
    "reused inputs": (
        {**ROPE, **GROUPS, "fused_qkv": False},
        overridden(reuse={"reuse_kv_x_layer_idx": -1}, warm=TUNED),
    ),
    "some without positions": (
        ROPE,
        {**overridden(nope={"nope": True, **TUNED}), "learned_pos_emb": False},
    ),
}
"""Attention settings and other settings."""


def build(
    name: str, attn_impl: str = "torch", n_layers: int = 3, **attn_config: Any
) -> MPTForCausalLM:
    """Returns a variant with weights that depend on nothing but its shape."""
    attention, others = VARIANTS[name]
    torch.manual_seed(4)
    sizes = {"d_model": 48, "n_heads": 6, "max_seq_len": 40, "vocab_size": 97}
    settings: dict[str, Any] = {**attention, "attn_impl": attn_impl, **attn_config}
    return MPTForCausalLM(
        MPTConfig(**{**sizes, "n_layers": n_layers, **others}, attn_config=settings)
    ).eval()
