"""Rank facts and plain collectives, from the launcher's environment or torch's process group."""

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def _is_up() -> bool:
    return dist.is_available() and dist.is_initialized()


def _fact(name: str, fallback: int) -> int:
    value = os.environ.get(name)
    return int(value) if value else fallback


def get_rank() -> int:
    """Number of this process among all (``RANK``)."""
    return _fact("RANK", dist.get_rank() if _is_up() else 0)


def get_world_size() -> int:
    """How many processes take part (``WORLD_SIZE``)."""
    return _fact("WORLD_SIZE", dist.get_world_size() if _is_up() else 1)


def get_local_rank() -> int:
    """Number of this process on its node (``LOCAL_RANK``)."""
    return _fact("LOCAL_RANK", 0)


def get_local_world_size() -> int:
    """How many processes run on this node (``LOCAL_WORLD_SIZE``)."""
    return _fact("LOCAL_WORLD_SIZE", 1)


def barrier() -> None:
    """Waits for all ranks; without a process group there is nobody to wait for."""
    if _is_up():
        dist.barrier()


def broadcast(tensor: torch.Tensor, src: int) -> None:
    """Overwrites the tensor with that of rank ``src``."""
    if _is_up():
        dist.broadcast(tensor, src)


def all_gather(tensor_list: list[torch.Tensor], tensor: torch.Tensor) -> None:
    """Fills the list with the tensor of every rank."""
    if _is_up():
        dist.all_gather(tensor_list, tensor)
    else:
        tensor_list[0] = tensor


def all_gather_object(obj: T) -> Sequence[T]:
    """The object of every rank, in rank order."""
    if not _is_up():
        return [obj]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, obj)
    return gathered


def maybe_init_dist() -> bool:
    """Starts a process group if there are several ranks and none yet; says whether it did.

    Streaming itself needs none: ranks agree by computing the same order.
    """
    if not dist.is_available() or dist.is_initialized() or get_world_size() == 1:
        return False
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return True
