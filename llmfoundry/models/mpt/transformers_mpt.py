"""Which MPT configurations transformers' own MPT class computes, and how they are written for it.

That class (``transformers.MptForCausalLM``) always uses ALiBi, has no biases, one FFN (exact GELU,
four times as wide) and plain attention, whatever its configuration says. A model that is anything
else needs the modelling code of this project beside its weights.
"""

from typing import Any

from llmfoundry.models.mpt.config import MPTConfig

__all__ = ["from_transformers_config", "to_transformers_config", "why_not_transformers"]

ATTENTION_MUST_BE: dict[str, Any] = {
    "attn_type": "multihead_attention",
    "alibi": True,
    "alibi_bias_max": 8,
    "rope": False,
    "qk_ln": False,
    "qk_gn": False,
    "fused_qkv": True,
    "sliding_window_size": -1,
    "attn_logit_softcapping": None,
    "kv_dim": None,
}
MODEL_MUST_BE: dict[str, Any] = {
    "no_bias": True,
    "attention_bias": False,
    "expansion_ratio": 4,
    "learned_pos_emb": False,
    "logit_scale": None,
    "final_logit_softcapping": None,
    "block_overrides": None,
    "use_pad_tok_in_ffn": True,
}
LAYER_NORMS = ("layernorm", "low_precision_layernorm")
SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
EXACT_GELU = ({"name": "gelu"}, {"name": "gelu", "approximate": "none"})


def why_not_transformers(config: MPTConfig) -> list[str]:
    """Returns the settings that transformers' own MPT class would ignore; none if it fits."""
    attn_config, ffn_config = config.attn_config, config.ffn_config
    reasons = [
        f"attn_config.{key}: {attn_config[key]!r}, not {value!r}"
        for key, value in ATTENTION_MUST_BE.items()
        if attn_config[key] != value
    ]
    reasons += [
        f"{key}: {getattr(config, key)!r}, not {value!r}"
        for key, value in MODEL_MUST_BE.items()
        if getattr(config, key) != value
    ]
    if attn_config.get("value_residual"):
        reasons.append("attn_config.value_residual is on")
    if attn_config.get("value_embeddings"):
        reasons.append("attn_config.value_embeddings is on")
    if attn_config["attn_temperature_tuning"]["attn_scale"] != 0:
        reasons.append("attn_config.attn_temperature_tuning is on")
    if config.head_dim not in (None, config.d_model // config.n_heads):
        reasons.append(f"head_dim: {config.head_dim}, not d_model / n_heads")
    if config.norm_type.lower() not in LAYER_NORMS:
        reasons.append(f"norm_type: {config.norm_type}, not one of {LAYER_NORMS}")
    if config.fc_type["name"] != "torch":
        reasons.append(f"fc_type: {config.fc_type['name']}, not torch")
    if getattr(config, "fuse_norm_attn_norm", False):
        reasons.append("fuse_norm_attn_norm: the weights have other names")
    if ffn_config["ffn_type"] != "mptmlp":
        reasons.append(f"ffn_config.ffn_type: {ffn_config['ffn_type']}, not mptmlp")
    if ffn_config.get("ffn_hidden_size") not in (None, 4 * config.d_model):
        reasons.append(f"ffn_config.ffn_hidden_size: {ffn_config['ffn_hidden_size']}")
    if ffn_config.get("ffn_act_fn") is not None and ffn_config["ffn_act_fn"] not in EXACT_GELU:
        reasons.append(f"ffn_config.ffn_act_fn: {ffn_config['ffn_act_fn']}, not exact gelu")
    return reasons


def to_transformers_config(config: MPTConfig) -> Any:
    """Returns the ``transformers.MptConfig`` of a model that it can express."""
    from transformers import MptConfig
    from transformers.models.mpt.configuration_mpt import MptAttentionConfig

    def as_float(value: float | None) -> float | None:
        return None if value is None else float(value)

    attn_config = config.attn_config
    tokens: dict[str, Any] = {key: getattr(config, key, None) for key in SPECIAL_TOKENS}
    return MptConfig(
        d_model=config.d_model,
        n_heads=config.n_heads,
        n_layers=config.n_layers,
        expansion_ratio=4,
        max_seq_len=config.max_seq_len,
        vocab_size=config.vocab_size,
        resid_pdrop=config.resid_pdrop,
        emb_pdrop=config.emb_pdrop,
        layer_norm_epsilon=config.norm_eps,
        learned_pos_emb=False,
        attn_config=MptAttentionConfig(
            attn_impl="torch",
            clip_qkv=as_float(attn_config["clip_qkv"]),
            softmax_scale=as_float(attn_config["softmax_scale"]),
            alibi=True,
            alibi_bias_max=8,
        ),
        embedding_fraction=float(config.embedding_fraction),
        norm_type=config.norm_type,
        no_bias=True,
        use_cache=config.use_cache,
        tie_word_embeddings=config.tie_word_embeddings,
        **tokens,
    )


def from_transformers_config(content: dict[str, Any]) -> MPTConfig:
    """Returns our configuration of a model of transformers' own MPT class.

    Args:
        content: Its ``config.json``.
    """
    from transformers import MptConfig

    theirs: Any = MptConfig.from_dict(content)
    names = ("d_model", "n_heads", "n_layers", "max_seq_len", "vocab_size", "resid_pdrop")
    names += ("emb_pdrop", "embedding_fraction", "use_cache", "tie_word_embeddings")
    same: dict[str, Any] = {key: getattr(theirs, key) for key in names + SPECIAL_TOKENS}
    of_attention = ("attn_pdrop", "clip_qkv", "softmax_scale")
    return MPTConfig(
        **same,
        norm_type=theirs.norm_type if theirs.norm_type in LAYER_NORMS else LAYER_NORMS[0],
        norm_eps=theirs.layer_norm_epsilon,
        no_bias=True,
        learned_pos_emb=False,
        attn_config={
            "attn_impl": "torch",
            "alibi": True,
            **{key: getattr(theirs.attn_config, key) for key in of_attention},
        },
    )
