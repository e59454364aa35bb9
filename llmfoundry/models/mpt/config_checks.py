"""What an MPT configuration must fulfil, and how it reads what older versions wrote."""

import difflib
import logging
import warnings
from collections.abc import Iterable
from typing import Any

from llmfoundry.models.layers.moe_settings import MEGABLOCKS, MIXTURES, config_moe_args
from llmfoundry.models.utils.config_defaults import (
    attn_config_defaults,
    init_config_defaults,
)
from llmfoundry.utils.warnings import VersionedDeprecationWarning

__all__ = [
    "check_config",
    "check_keys",
    "check_spelling",
    "fill_defaults",
    "read_legacy_keys",
    "value_embedding_layers",
]

log = logging.getLogger(__name__)

ATTENTION_KEYS = {
    *attn_config_defaults,
    "kv_n_heads",
    "norm_type",
    "norm_eps",
    "reuse_kv_layer_idx",
    "reuse_kv_x_layer_idx",
    "seq_parallel_world_size",
    "value_embeddings",
    "value_residual",
}
OWN_ATTENTION = ("multihead_attention", "multiquery_attention", "grouped_query_attention")
ROPE_SCALING_KEYS = {
    "no_scaling": {"type", "factor"},
    "linear": {"type", "factor"},
    "dynamic": {"type", "factor"},
    "llama3": {
        "type",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    },
    "yarn": {"type", "factor", "original_max_position_embeddings"},
}
OPTIONAL_SCALING_KEYS = {"yarn": {"attention_factor", "beta_fast", "beta_slow"}}
INIT_KEYS = {*init_config_defaults}


def fill_defaults(config: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Adds to ``config``, in place and in depth, what it lacks of ``defaults``."""
    for key, default in defaults.items():
        if key not in config:
            config[key] = dict(default) if isinstance(default, dict) else default
        elif isinstance(default, dict):
            config[key] = {} if config[key] is None else config[key]
            if isinstance(config[key], dict):
                fill_defaults(config[key], default)


def check_keys(config: Iterable[str], valid: Iterable[str], where: str) -> None:
    """Refuses keys that are not among the valid ones.

    Raises:
        TypeError: There are some; the message suggests what may have been meant.
    """
    valid = sorted(valid)
    for key in config:
        if key not in valid:
            close = difflib.get_close_matches(key, valid, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise TypeError(
                f"{where} got an unexpected key {key!r}.{hint} Valid keys: {', '.join(valid)}."
            )


def check_spelling(kwargs: Iterable[str], known: Iterable[str]) -> None:
    """Refuses a keyword that looks like a misspelt one; others are kept as attributes.

    Raises:
        TypeError: A keyword is one or two letters off.
    """
    known = set(known)
    for key in kwargs:
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.85)
        if close and key not in known:
            raise TypeError(f"MPTConfig got an unexpected key {key!r}. Did you mean {close[0]!r}?")


def read_legacy_keys(
    attn_config: dict[str, Any], init_config: dict[str, Any], kwargs: dict[str, Any]
) -> None:
    """Translates or drops, in place, keys that older versions wrote.

    Raises:
        NotImplementedError: A key asks for what is gone.
    """
    kwargs.pop("verbose", None)
    attn_config.pop("id2label", None)  # an exported folder's word to transformers' own class
    init_config.pop("verbose", None)
    if attn_config.pop("prefix_lm", False):
        raise NotImplementedError(
            "attn_config.prefix_lm: true is not supported; MPT models are causal since 2024."
        )
    if attn_config.get("attn_impl") == "triton":
        warnings.warn(
            VersionedDeprecationWarning("attn_impl: triton is read as torch.", "1.0"), stacklevel=4
        )
        attn_config["attn_impl"] = "torch"
    world_size = attn_config.pop("seq_parallel_world_size", None)
    if world_size is not None and world_size > 1:
        raise NotImplementedError(
            f"Sequence Parallelism is not supported. Remove seq_parallel_world_size={world_size}."
        )
    scaling = attn_config.get("rope_hf_config")
    if isinstance(scaling, dict):
        if "rope_type" in scaling:
            scaling["type"] = scaling.pop("rope_type")
        if scaling.get("type") == "default":
            scaling["type"] = "no_scaling"


def _check_attention(attn_config: dict[str, Any]) -> None:
    if attn_config["attn_type"] in OWN_ATTENTION:
        check_keys(attn_config, ATTENTION_KEYS, "attn_config")
        for part in ("rope_dail_config", "attn_temperature_tuning"):
            check_keys(attn_config[part], attn_config_defaults[part], f"attn_config.{part}")
    if attn_config["attn_impl"] not in ("torch", "flash", "flex"):
        raise ValueError(
            f"Unknown attn_impl={attn_config['attn_impl']}. Use attn_impl: torch, flash or flex."
        )
    if attn_config["attn_impl"] == "flex" and attn_config["attn_pdrop"]:
        raise ValueError(
            f"attn_impl: flex has no dropout, but attn_pdrop is {attn_config['attn_pdrop']}. Set "
            "it to 0, or use attn_impl: torch."
        )
    if attn_config["nope"]:
        raise ValueError(
            "nope cannot be specified as the default position encoding, it can only be specified "
            "as an override using block_overrides. Please use alibi or rope instead."
        )
    softcap = attn_config["attn_logit_softcapping"]
    if softcap is not None and softcap <= 0:
        raise ValueError(f"Attention attn_logit_softcapping should be positive, but got {softcap}.")
    share = attn_config.get("value_residual", 0.0)
    if not 0 <= share < 1:
        raise ValueError(
            f"attn_config.value_residual={share} is the share of the first layer's values in the "
            "other layers'; it must be at least 0 and less than 1, such as 0.5."
        )
    if attn_config["kv_dim"] is not None and attn_config["fused_qkv"]:
        raise ValueError('fused_qkv should be False when "kv_dim" is specified.')
    if attn_config["rope"]:
        _check_rope(attn_config)


def value_embedding_layers(attn_config: dict[str, Any], n_layers: int) -> list[int]:
    """Returns the layers for which ``attn_config.value_embeddings`` asks tables.

    Raises:
        ValueError: It names none, or one that the model does not have.
    """
    chosen = attn_config.get("value_embeddings")
    if chosen is None:
        return []
    if chosen == "every_other":
        return [layer for layer in range(n_layers) if (n_layers - layer) % 2 == 1]
    is_list = isinstance(chosen, (list, tuple)) and all(type(layer) is int for layer in chosen)
    if not is_list or not chosen or len({*chosen}) < len(chosen):
        raise ValueError(
            f"attn_config.value_embeddings={chosen!r} is neither every_other nor a list of layers, "
            "each named once, such as [0, 1, 10, 11]; leave it out for no tables."
        )
    for layer in chosen:
        if not 0 <= layer < n_layers:
            raise ValueError(
                f"attn_config.value_embeddings={chosen!r} names layer {layer}; with "
                f"n_layers={n_layers}, layers are 0 to {n_layers - 1}."
            )
    return list(chosen)


def _check_rope(attn_config: dict[str, Any]) -> None:
    rope_impl = attn_config["rope_impl"]
    if rope_impl not in ("dail", "hf"):
        raise ValueError(
            f'If rope is being used then rope_impl should be either "dail", or "hf", but got '
            f"{rope_impl!r}."
        )
    if rope_impl == "dail":
        kind = attn_config["rope_dail_config"]["type"]
        if kind not in ("original", "xpos"):
            raise ValueError(
                f"If using the dail implementation of rope, the type should be either "
                f'"original" or "xpos", but got {kind!r}.'
            )
        return
    scaling = attn_config["rope_hf_config"]
    if scaling["type"] not in ROPE_SCALING_KEYS:
        raise ValueError(
            "If using hf implementation of rope, the type should be one of "
            f"{', '.join(ROPE_SCALING_KEYS)}, but got {scaling['type']!r}."
        )
    wanted = ROPE_SCALING_KEYS[scaling["type"]]
    valid = wanted | OPTIONAL_SCALING_KEYS.get(scaling["type"], set())
    check_keys(scaling, valid, f"rope_hf_config of type {scaling['type']}")
    if wanted - scaling.keys():
        raise ValueError(
            f"rope_hf_config of type {scaling['type']} needs {sorted(wanted - scaling.keys())}."
        )


def _check_shape(config: Any) -> None:
    if config.d_model % config.n_heads != 0:
        raise ValueError(
            f"d_model must be divisible by n_heads, but got {config.d_model} and {config.n_heads}."
        )
    probabilities = (config.attn_config["attn_pdrop"], config.resid_pdrop, config.emb_pdrop)
    if any(p < 0 or p > 1 for p in probabilities):
        raise ValueError(
            "self.attn_config['attn_pdrop'], resid_pdrop, emb_pdrop are probabilities and must be "
            f"between 0 and 1, but got {probabilities}."
        )
    if config.embedding_fraction > 1 or config.embedding_fraction <= 0:
        raise ValueError(
            "model.embedding_fraction must be between 0 (exclusive) and 1 (inclusive), but got "
            f"{config.embedding_fraction}."
        )
    if isinstance(config.logit_scale, str) and config.logit_scale != "inv_sqrt_d_model":
        raise ValueError(
            f"logit_scale={config.logit_scale!r} is not recognized as an option; use numeric value "
            "or 'inv_sqrt_d_model'."
        )
    if config.init_config.get("name") is None:
        raise ValueError(f"init_config={config.init_config!r} 'name' needs to be set.")
    check_keys(config.init_config, INIT_KEYS, "init_config")


def _check_ffn(config: Any) -> None:
    ffn_config = config.ffn_config
    if ffn_config["ffn_type"] == "mptgeglu":
        raise ValueError(
            'API CHANGE: `ffn_type=="mptgeglu"` changed to `ffn_type=="mptglu"`. '
            "Use ffn_type: mptglu."
        )
    if config.fc_type["name"] == "te" or ffn_config["ffn_type"] == "te_ln_mlp":
        raise ImportError(
            "TransformerEngine layers (fc_type: te, ffn_type: te_ln_mlp) are not built here, with "
            "transformer-engine installed or not. Use fc_type: torch and ffn_type: mptmlp."
        )
    if ffn_config["ffn_type"] in MEGABLOCKS:
        ffn_config["return_bias"] = False
    if ffn_config["ffn_type"] in MIXTURES:
        config_moe_args(ffn_config, config.d_model, config.expansion_ratio, config.n_layers)
    ffn_config["fc_type"] = config.fc_type


def _check_overrides(config: Any) -> None:
    overrides = config.block_overrides
    if overrides is None:
        return
    for key in ("order", "overrides"):
        if key not in overrides:
            raise ValueError(f"`{key}` should be defined in block_overrides")
    if "default" in overrides["overrides"]:
        raise ValueError('block overrides cannot be named "default".')
    nope = any(o.get("attn_config", {}).get("nope") for o in overrides["overrides"].values())
    if nope and config.learned_pos_emb:
        raise ValueError(
            "nope position encoding block override cannot be used with learned_pos_emb; set "
            "learned_pos_emb: false."
        )


def check_config(config: Any) -> None:
    """Checks a filled ``MPTConfig``, and settles what depends on several of its keys."""
    _check_shape(config)
    _check_attention(config.attn_config)
    value_embedding_layers(config.attn_config, config.n_layers)
    _check_overrides(config)
    _check_ffn(config)
    positions = (config.attn_config["alibi"], config.attn_config["rope"])
    if config.learned_pos_emb and any(positions):
        log.info("alibi or rope is turned on, setting `learned_pos_emb` to `False`.")
        config.learned_pos_emb = False
    if not (config.learned_pos_emb or any(positions)):
        warnings.warn(
            "Positional information not being provided to the model using either learned_pos_emb "
            "or alibi or rope.",
            stacklevel=3,
        )
