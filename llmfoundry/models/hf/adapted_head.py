"""Output layers with adapters on them, whose loss is computed in chunks all the same."""

import functools
from typing import Any

import torch

from llmfoundry.models.utils.chunked_cross_entropy import chunked_cross_entropy

__all__ = ["head_weight", "is_plain_head", "lora_head_class"]


@functools.cache
def lora_head_class() -> type:
    """Returns what peft is to put around an MPT's output layer."""
    from peft.tuners import lora

    class LoraHead(lora.Linear):
        """An MPT's output layer with adapters, which computes the loss itself where asked to."""

        def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            targets = kwargs.pop("targets", None)
            if targets is None:
                return super().forward(x, *args, **kwargs)
            return chunked_cross_entropy(
                x.flatten(0, -2), head_weight(self), targets.flatten(), **kwargs
            )

    return LoraHead


def is_plain_head(head: Any) -> bool:
    """Says whether an output layer, adapted or not, computes no more than a product with a weight.

    :func:`head_weight` is that weight.
    """
    if hasattr(head, "lora_A"):
        has_dropout = any(isinstance(e, torch.nn.Dropout) for e in head.lora_dropout.values())
        return (
            not has_dropout and not any(head.lora_bias.values()) and is_plain_head(head.base_layer)
        )
    if hasattr(head, "modules_to_save"):
        return all(is_plain_head(each) for each in head.modules_to_save.values())
    return type(head) is torch.nn.Linear and head.bias is None


def head_weight(head: Any) -> torch.Tensor:
    """Returns an output layer's weight, ``[V, E]``, with the adapters on it if there are any.

    Args:
        head: A linear layer without a bias, or what peft made of one; its adapters are without
            dropout.
    """
    weight = head.weight
    if not hasattr(head, "lora_A") or head.disable_adapters or head.merged:
        return weight
    for name in head.active_adapters:
        delta = head.get_delta_weight(name)
        dora = head.lora_magnitude_vector[name] if name in head.lora_variant else None
        if dora is not None:  # DoRA, arXiv 2402.09353: the norm counts as a constant (4.3)
            norm = dora.get_weight_norm(weight, delta, scaling=1).detach()
            return (dora.weight / norm)[:, None] * (weight + delta)
        weight = weight + delta
    return weight
