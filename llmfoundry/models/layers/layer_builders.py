"""Builds layers from the names in a model's configuration."""

from typing import Any

import torch

from llmfoundry.layers_registry import (
    attention_classes,
    ffns,
    ffns_with_megablocks,
    ffns_with_norm,
    norms,
)
from llmfoundry.models.layers.fc import build_fc
from llmfoundry.utils.registry_utils import construct_from_registry

__all__ = ["build_attention_layer", "build_fc", "build_ffn", "build_norm"]


def build_norm(
    name: str,
    normalized_shape: int | list[int] | torch.Size,
    eps: float | None = 1e-5,
    device: str | torch.device | None = None,
) -> Any:
    """Builds the norm that ``norm_type`` names."""
    kwargs = {"normalized_shape": normalized_shape, "eps": eps, "device": device}
    return construct_from_registry(
        name=name,
        registry=norms,
        partial_function=True,
        pre_validation_function=torch.nn.Module,
        kwargs=kwargs,
    )


def build_attention_layer(name: str, attn_kwargs: dict[str, Any]) -> Any:
    """Builds the attention layer that ``attn_type`` names."""
    return construct_from_registry(
        name=name,
        registry=attention_classes,
        partial_function=True,
        pre_validation_function=torch.nn.Module,
        kwargs=attn_kwargs,
    )


def build_ffn(
    name: str,
    d_model: int,
    expansion_ratio: float,
    device: str | torch.device | None,
    bias: bool,
    ffn_kwargs: dict[str, Any],
) -> Any:
    """Builds the FFN that ``ffn_type`` names."""
    registries = {"": ffns, "_has_norm": ffns_with_norm, "_uses_megablocks": ffns_with_megablocks}
    flag = next((key for key, registry in registries.items() if name in registry), "")
    ffn = construct_from_registry(
        name=name,
        registry=registries[flag],
        partial_function=False,
        post_validation_function=None,
        kwargs={
            "d_model": d_model,
            "expansion_ratio": expansion_ratio,
            "device": device,
            "bias": bias,
            **ffn_kwargs,
        },
    )
    if flag:
        setattr(ffn, flag, True)
    return ffn
