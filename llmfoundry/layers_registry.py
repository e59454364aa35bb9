"""The registries of model parts: norms, FFNs, attention, linear layers, initialisers.

Every part of ours stands here by its path, and is imported when a model asks for it.
"""

from collections.abc import Callable
from typing import Any

import torch

from llmfoundry.utils.registry_utils import TypedRegistry, create_registry

__all__ = [
    "attention_classes",
    "attention_implementations",
    "fcs",
    "ffns",
    "ffns_with_megablocks",
    "ffns_with_norm",
    "module_init_fns",
    "norms",
    "param_init_fns",
]


def _registry(
    name: str, generic_type: Any, description: str, rows: dict[str, str]
) -> TypedRegistry[Any]:
    """Creates a registry that packages may add to, with the parts of this house."""
    registry = create_registry(
        "llmfoundry",
        name,
        generic_type=generic_type,
        entry_points=True,
        description=description,
    )
    for key, path in rows.items():
        registry.register_path(key, path, package=__package__)
    return registry


norms = _registry(
    "norms",
    type[torch.nn.Module],
    "Normalisation layers: cls(normalized_shape, eps=, device=).",
    {
        "layernorm": "torch.nn:LayerNorm",
        "rmsnorm": "llmfoundry.models.layers.norm:RMSNorm",
        "low_precision_layernorm": "llmfoundry.models.layers.norm:LPLayerNorm",
        "low_precision_rmsnorm": "llmfoundry.models.layers.norm:LPRMSNorm",
        "triton_rmsnorm": "llmfoundry.models.layers.norm:TritonRMSNorm",
    },
)
fcs = _registry(
    "fcs",
    type[torch.nn.Module],
    "Linear layers: cls(in_features, out_features, bias=, device=, ...).",
    {"torch": "torch.nn:Linear"},
)
ffns = _registry(
    "ffns",
    Callable[..., torch.nn.Module],
    "Builders of FFNs: f(d_model, expansion_ratio, device=, bias=, **ffn_config).",
    {
        "mptmlp": "llmfoundry.models.layers.ffn:build_mptmlp",
        "mptglu": "llmfoundry.models.layers.ffn:build_mptglu",
        "torch_dmoe": "llmfoundry.models.layers.dmoe:build_torch_dmoe",
    },
)
ffns_with_norm = _registry(
    "ffns_with_norm",
    Callable[..., torch.nn.Module],
    "Builders of FFNs that hold their own norm; the block then adds none.",
    {},
)
ffns_with_megablocks = _registry(
    "ffns_with_megablocks",
    Callable[..., torch.nn.Module],
    "Builders of FFNs that are mixtures of experts with losses; they get num_layers too.",
    {
        "mb_moe": "llmfoundry.models.layers.mb_moe:build_mb_moe",
        "mb_dmoe": "llmfoundry.models.layers.mb_moe:build_mb_dmoe",
    },
)
attention_classes = _registry(
    "attention_classes",
    type[torch.nn.Module],
    "Attention layers, by attn_config.attn_type.",
    {
        "multihead_attention": "llmfoundry.models.layers.attention:MultiheadAttention",
        "multiquery_attention": "llmfoundry.models.layers.attention:MultiQueryAttention",
        "grouped_query_attention": "llmfoundry.models.layers.attention:GroupedQueryAttention",
    },
)
# Both names run the fastest kernel that torch has for the inputs at hand.
attention_implementations = _registry(
    "attention_implementations",
    Callable[..., Any],
    "The attention function, by attn_config.attn_impl.",
    {
        "flash": "llmfoundry.models.layers.sdpa:scaled_multihead_dot_product_attention",
        "flex": "llmfoundry.models.layers.sdpa:scaled_multihead_dot_product_attention",
        "torch": "llmfoundry.models.layers.sdpa:scaled_multihead_dot_product_attention",
    },
)
param_init_fns = _registry(
    "param_init_fns",
    Callable[..., None],
    "Initialisers of a module's own parameters, by init_config.name.",
    {
        "default_": "llmfoundry.models.utils.param_init_fns:torch_default_param_init_fn_",
        "baseline_": "llmfoundry.models.utils.param_init_fns:baseline_param_init_fn_",
        "kaiming_uniform_": "llmfoundry.models.utils.param_init_fns:kaiming_uniform_param_init_fn_",
        "kaiming_normal_": "llmfoundry.models.utils.param_init_fns:kaiming_normal_param_init_fn_",
        "neox_init_": "llmfoundry.models.utils.param_init_fns:neox_param_init_fn_",
        "small_init_": "llmfoundry.models.utils.param_init_fns:small_param_init_fn_",
        "xavier_uniform_": "llmfoundry.models.utils.param_init_fns:xavier_uniform_param_init_fn_",
        "xavier_normal_": "llmfoundry.models.utils.param_init_fns:xavier_normal_param_init_fn_",
    },
)
module_init_fns = _registry(
    "module_init_fns",
    Callable[..., bool],
    "Rules of param_init_fns, tried in order: each says whether it took the module.",
    {
        "fc": "llmfoundry.models.utils.param_init_fns:fc_init",
        "embedding": "llmfoundry.models.utils.param_init_fns:embedding_init",
        "norm": "llmfoundry.models.utils.param_init_fns:norm_init",
        "multihead_attention": "llmfoundry.models.utils.param_init_fns:multihead_attention_init",
        "moe": "llmfoundry.models.utils.param_init_fns:moe_init",
    },
)
