"""Copies of a state in the memory of the host, from which it is written while training goes on."""

import copy
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

__all__ = ["Staging"]

_Kind = tuple[torch.Size, tuple[int, ...], torch.dtype, bool]


class Staging:
    """Memory for one copy of a state. It is kept from save to save.

    The first use of a page of memory costs five times as much as copying into it, so taking new
    memory for each save would keep training waiting for most of what is to be saved.
    """

    def __init__(self) -> None:
        self._free: dict[_Kind, list[torch.Tensor]] = defaultdict(list)
        self._used: list[tuple[_Kind, torch.Tensor]] = []

    @property
    def size_bytes(self) -> int:
        """How much memory it holds."""
        free = (tensor for tensors in self._free.values() for tensor in tensors)
        return sum(tensor.nbytes for tensor in [*free, *(tensor for _, tensor in self._used)])

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy of a tensor; of one on a GPU it is there after ``synchronize``."""
        kind = tensor.size(), tensor.stride(), tensor.dtype, tensor.is_cuda
        if self._free[kind]:
            target = self._free[kind].pop()
        else:
            target = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        self._used.append((kind, target))
        return target.copy_(tensor, non_blocking=True)

    def synchronize(self) -> None:
        """Waits until all copies are there."""
        if any(kind[-1] for kind, _ in self._used):
            torch.cuda.synchronize()

    def copy_nested(self, value: Any, only: set[int] | None = None) -> Any:
        """Returns a copy of containers, and of all that is in them; shared tensors stay shared.

        Args:
            value: The containers.
            only: The addresses of storages; tensors in others need no copy.
        """
        return self._copy_nested(value, {}, only)

    def _copy_nested(
        self, value: Any, known: dict[Any, torch.Tensor], only: set[int] | None
    ) -> Any:
        if isinstance(value, torch.Tensor):
            if only is not None and value.untyped_storage().data_ptr() not in only:
                return value
            place = value.data_ptr(), value.size(), value.stride(), value.dtype
            if value.numel() == 0 or place not in known:
                known[place] = self.copy(value.detach())
            return known[place]
        if isinstance(value, dict):
            return {key: self._copy_nested(child, known, only) for key, child in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self._copy_nested(child, known, only) for child in value)
        return value.copy() if isinstance(value, np.ndarray) else copy.deepcopy(value)

    def reserve(self, tensors: Iterable[torch.Tensor]) -> None:
        """Takes the memory for copies of these tensors now, whatever they hold."""
        for tensor in tensors:
            self.copy(tensor.detach())
        self.release()

    def release(self) -> None:
        """Lets the memory be used again: what was copied has been written."""
        for kind, tensor in self._used:
            self._free[kind].append(tensor)
        self._used.clear()

    def forget(self) -> None:
        """Gives the memory back."""
        self._free.clear()
        self._used.clear()
