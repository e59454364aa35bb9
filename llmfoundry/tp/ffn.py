"""Splits feed-forward layers alone, as recipes of older releases ask for."""

from typing import Any

import torch

__all__ = ["ffn_tp_strategy"]

_NAMES = ("ffn", "ffn.up_proj", "ffn.down_proj")


def ffn_tp_strategy(model: torch.nn.Module) -> dict[str, Any]:
    """Returns the plan that splits each ``ffn``, whose inputs come as shares of a batch.

    Ranks of a group that all have one batch compute it as many times as there are ranks: memory is
    saved, time is not. ``mpt_tp_strategy`` saves both.

    Args:
        model: A model with modules ``ffn.up_proj`` and ``ffn.down_proj``.

    Raises:
        RuntimeError: If it has none.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
    )

    names = [name for name, _ in model.named_modules()]
    if not all(any(wanted in name for name in names) for wanted in _NAMES):
        raise RuntimeError(
            f"the tensor-parallel strategy 'ffn' needs modules {', '.join(_NAMES)}, and the model "
            "has not all of them; for a Llama-like Hugging Face model use the strategy 'llama'"
        )
    plan: dict[str, Any] = {}
    for name in names:
        parts = name.split(".")
        if parts[-1] == "ffn":
            plan[name] = PrepareModuleInput(
                input_layouts=Shard(0), desired_input_layouts=Replicate(), use_local_output=True
            )
        elif parts[-2:] == ["ffn", "up_proj"]:
            plan[name] = ColwiseParallel(input_layouts=Replicate(), output_layouts=Shard(-1))
        elif parts[-2:] == ["ffn", "down_proj"]:
            plan[name] = RowwiseParallel(input_layouts=Shard(-1), output_layouts=Shard(0))
    return plan
