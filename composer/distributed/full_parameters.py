"""Whole parameters of a sharded model, for as long as a block of code needs them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from composer.utils import dist
from composer.utils.misc import is_model_fsdp2

__all__ = [
    "get_summon_params_fn",
    "summon_full_params_fsdp2",
    "validate_all_dtensors_are_fsdp_based",
]


def _get_params_to_summon_fsdp2(module: torch.nn.Module, recurse: bool = True) -> dict[str, Any]:
    """Returns the sharded parameters by name; without ``recurse`` not those of units below."""
    from torch.distributed.fsdp import FSDPModule

    found: dict[str, Any] = {}

    def collect(each: torch.nn.Module, prefix: str) -> None:
        for name, parameter in each._parameters.items():
            if hasattr(parameter, "device_mesh"):
                found[prefix + name] = parameter
        for name, child in each.named_children():
            if recurse or not isinstance(child, FSDPModule):
                collect(child, f"{prefix}{name}.")

    collect(module, "")
    return found


def validate_all_dtensors_are_fsdp_based(model: torch.nn.Module) -> None:
    """Refuses a model with a distributed parameter that ``fully_shard`` did not make.

    Raises:
        ValueError: If there is one, as tensor parallelism makes them.
    """
    from torch.distributed.fsdp import FSDPModule

    managed: set[int] = set()
    for module in model.modules():
        if isinstance(module, FSDPModule):
            managed.update(id(parameter) for parameter in module.parameters())
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "device_mesh") and id(parameter) not in managed:
            raise ValueError(
                f"{name} is distributed, but not by fully_shard: whole parameters can only be made "
                "of a model that is sharded and nothing else"
            )


@contextlib.contextmanager
def summon_full_params_fsdp2(
    model: torch.nn.Module,
    writeback: bool = True,
    recurse: bool = True,
    rank0_only: bool = False,
    offload_to_cpu: bool = False,
    with_grads: bool = False,
) -> Iterator[None]:
    """Gives a sharded model whole parameters inside of the block; all ranks enter it together.

    Args:
        model: The model.
        writeback: Whether changes to the whole parameters are kept.
        recurse: Whether units below the outermost are made whole too.
        rank0_only: Whether only rank 0 gets them; the others keep their shards.
        offload_to_cpu: Whether the whole parameters are on the CPU.
        with_grads: Whether gradients are made whole too (and written back with ``writeback``).

    Raises:
        ValueError: If changes on rank 0 alone are to be written back, or a parameter is distributed
            by something else than ``fully_shard``.
    """
    if writeback and rank0_only:
        raise ValueError(
            "rank0_only=True with writeback=True: the other ranks would not see the changes; set "
            "one of them to False"
        )
    validate_all_dtensors_are_fsdp_based(model)
    wanted = _get_params_to_summon_fsdp2(model, recurse)
    whole: dict[int, torch.nn.Parameter] = {}
    for sharded in wanted.values():
        if id(sharded) not in whole:
            whole[id(sharded)] = _whole(sharded, offload_to_cpu, with_grads)
    visible = not rank0_only or dist.get_global_rank() == 0
    try:
        if visible:
            _place(model, {name: whole[id(sharded)] for name, sharded in wanted.items()})
        yield
    finally:
        if visible:
            _place(model, wanted)
        if writeback:
            for sharded in {id(one): one for one in wanted.values()}.values():
                _write_back(sharded, whole[id(sharded)], with_grads)


def _whole(sharded: Any, offload_to_cpu: bool, with_grads: bool) -> torch.nn.Parameter:
    def gathered(tensor: Any) -> torch.Tensor:
        full = tensor.full_tensor().detach().clone()
        return full.cpu() if offload_to_cpu else full

    parameter = torch.nn.Parameter(gathered(sharded), requires_grad=sharded.requires_grad)
    if with_grads and sharded.grad is not None:
        parameter.grad = gathered(sharded.grad)
    return parameter


def _place(model: torch.nn.Module, parameters: dict[str, Any]) -> None:
    for name, parameter in parameters.items():
        path, _, own = name.rpartition(".")
        model.get_submodule(path)._parameters[own] = parameter


@torch.no_grad()
def _write_back(sharded: Any, whole: torch.nn.Parameter, with_grads: bool) -> None:
    write_shard(sharded, whole)
    if with_grads and whole.grad is not None and sharded.grad is not None:
        write_shard(sharded.grad, whole.grad)


def write_shard(sharded: Any, whole: torch.Tensor) -> None:
    """Copies this rank's part of a whole tensor into a sharded one."""
    from torch.distributed.tensor import distribute_tensor

    # Every rank has the whole, so each cuts its own part: nothing is sent.
    local = distribute_tensor(
        whole.detach().to(sharded.device),
        sharded.device_mesh,
        sharded.placements,
        src_data_rank=None,
    )
    sharded.to_local().copy_(local.to_local())


def get_summon_params_fn(model: torch.nn.Module) -> Callable[..., Any]:
    """Returns the function that makes a model's parameters whole: a no-op if it is not sharded."""
    if any(is_model_fsdp2(module) for module in model.modules()):
        return summon_full_params_fsdp2
    return lambda *_args, **_kwargs: contextlib.nullcontext()
