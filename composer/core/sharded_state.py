"""State dicts of sharded models by the functions that programs have always called for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from composer.core.model_state import get_optimizer_state
from composer.utils import dist
from composer.utils.gradients import as_sharded

__all__ = [
    "fsdp_state_dict_type_context",
    "get_fsdp_full_optim_state_dict",
    "get_fsdp_sharded_optim_state_dict",
    "placed_as",
]


@contextlib.contextmanager
def fsdp_state_dict_type_context(
    module: torch.nn.Module, state_dict_type: str = "full"
) -> Iterator[None]:
    """Says what ``module.state_dict()`` returns of a sharded model inside of the block.

    Args:
        module: The model.
        state_dict_type: ``"full"`` for whole tensors in the CPU's memory of rank 0, and nothing on
            other ranks, which call it too; ``"sharded"`` for each rank's shards.

    Raises:
        NotImplementedError: If it is neither.
    """
    if state_dict_type not in ("full", "sharded"):
        raise NotImplementedError(
            f"No valid FSDP state_dict_type for {state_dict_type!r}: it is 'full' or 'sharded'"
        )
    if state_dict_type == "sharded":
        yield
        return

    def gather(_module: Any, state: dict[str, Any], _prefix: str, _metadata: Any) -> None:
        for name, tensor in list(state.items()):
            sharded = as_sharded(tensor) if isinstance(tensor, torch.Tensor) else None
            whole = tensor if sharded is None else sharded.full_tensor()
            state[name] = whole.cpu() if isinstance(whole, torch.Tensor) else whole
        if dist.get_global_rank() > 0:
            state.clear()

    hook = module._register_state_dict_hook(gather)
    try:
        yield
    finally:
        hook.remove()


def get_fsdp_full_optim_state_dict(
    model: torch.nn.Module, optim: Optimizer, rank0_only: bool = True
) -> dict[str, Any]:
    """Returns the optimizer's state with whole tensors, by the parameters' names.

    Args:
        model: The model.
        optim: Its optimizer.
        rank0_only: Whether only rank 0 gets it, in the CPU's memory; the others get ``{}``.
    """
    state = get_optimizer_state(model, optim, full=True, cpu_offload=rank0_only)
    return {} if rank0_only and dist.get_global_rank() > 0 else state


def get_fsdp_sharded_optim_state_dict(
    full_optim_state_dict: dict[str, Any], model: torch.nn.Module
) -> dict[str, Any]:
    """Returns a whole optimizer state with this rank's shards, as the parameters are sharded.

    Args:
        full_optim_state_dict: The state by names, whole on every rank.
        model: The sharded model.
    """
    parameters = dict(model.named_parameters())
    state = {
        name: {key: placed_as(value, parameters[name]) for key, value in moments.items()}
        for name, moments in full_optim_state_dict["state"].items()
    }
    return {"state": state, "param_groups": full_optim_state_dict["param_groups"]}


def placed_as(value: Any, parameter: torch.Tensor) -> Any:
    """Returns a whole tensor of a parameter's shape sharded as that is; anything else as it is."""
    sharded = as_sharded(parameter)
    is_moment = isinstance(value, torch.Tensor) and value.shape == parameter.shape
    if sharded is None or not is_moment:
        return value
    from torch.distributed.tensor import distribute_tensor

    # Every rank has the whole, so each cuts its own part: nothing is sent.
    return distribute_tensor(
        value.to(sharded.device), sharded.device_mesh, sharded.placements, src_data_rank=None
    )
