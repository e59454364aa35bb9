"""Tells of a Hugging Face model which modules are units of sharding and recompute."""

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import torch

__all__ = ["prepare_hf_model_for_fsdp"]

_BASES = ("transformer", "model.decoder", "gpt_neox", "model.transformer")
_LAYERS = ("h", "decoder.layers", "layers", "block", "blocks", "encoder.layer", "encoder.layers")


def prepare_hf_model_for_fsdp(model: Any, init_device: str | None) -> None:
    """Gives a model, in place, what sharding asks it for: its repeated blocks are the units.

    Embeddings and the head stay in the model's own unit, tied or not. So do adapters (PEFT) outside
    of blocks; frozen and trained parameters may be in one unit.

    Args:
        model: A causal or an encoder-decoder language model of transformers, or one around it.
        init_device: Where its weights are; on ``meta`` and ``mixed``, the model initialises its
            modules as transformers does.

    Raises:
        ValueError: If the model's blocks are not found.
    """
    config: Any = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        stacks = [model.get_encoder(), model.get_decoder()]
    else:
        stacks = [_base_of(model)]
    kinds = tuple({type(_layers_of(stack)[0]) for stack in stacks})

    def is_block(module: torch.nn.Module) -> bool:
        return isinstance(module, kinds)

    model.fsdp_wrap_fn = is_block
    model.activation_checkpointing_fn = is_block
    if init_device in ("meta", "mixed"):
        model.param_init_fn = _initialises_as(model)


def _initialises_as(model: Any) -> Any:
    def initialise(module: torch.nn.Module) -> None:
        model._init_weights(module)
        # RMS norms of several models are left to their constructors, which set ones.
        weight = module._parameters.get("weight")
        if weight is not None and "RMSNorm" in type(module).__name__ and weight.isnan().any():
            torch.nn.init.ones_(weight)

    return initialise


def _found(model: Any, paths: Iterable[str]) -> Any:
    for path in paths:
        try:
            return attrgetter(path)(model)
        except AttributeError:
            continue
    return None


def _base_of(model: Any) -> Any:
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    base = decoder if decoder is not None else _found(model, _BASES)
    if base is None:
        raise ValueError(
            f"Unable to FSDP-wrap model {type(model).__name__}: it has neither get_decoder() nor "
            f"one of {', '.join(_BASES)}, where blocks would be. Give the model an "
            "fsdp_wrap_fn(module) of its own."
        )
    return base


def _layers_of(base: Any) -> Any:
    layers = _found(base, _LAYERS)
    if layers is None or not len(layers):
        raise ValueError(
            f"Unable to find the blocks of a {type(base).__name__}: it has none of "
            f"{', '.join(_LAYERS)}. Give the model an fsdp_wrap_fn(module) of its own."
        )
    return layers
