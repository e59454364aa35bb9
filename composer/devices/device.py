"""The interface of a device: where modules, optimizers and batches are moved to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.nn.utils.rnn import PackedSequence
from torch.optim import Optimizer

T_nnModule = TypeVar("T_nnModule", bound=torch.nn.Module)


class Device(ABC):
    """Moves things to one kind of device.

    A subclass sets the class attributes and says how a module and a tensor are moved.
    """

    dist_backend: str = ""
    """The torch.distributed backend of this device; empty if it has none."""
    name: str = ""
    _device: Any = None

    @abstractmethod
    def module_to_device(self, module: T_nnModule) -> T_nnModule:
        """Moves the module to this device and returns it."""

    @abstractmethod
    def tensor_to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor on this device."""

    def batch_to_device(self, batch: Any) -> Any:
        """Returns the batch with all its tensors on this device; everything else is untouched.

        Mappings become dicts; sequences keep their type where they can and become lists otherwise.
        """
        return _map_batch(batch, self._move_if_tensor)

    def optimizer_to_device(self, optimizer: Optimizer) -> Optimizer:
        """Moves the tensors of the optimizer's state to this device, in place, and returns it."""
        for state in optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[name] = self.tensor_to_device(value)
        return optimizer

    def _move_if_tensor(self, value: Any) -> Any:
        if isinstance(value, PackedSequence):
            return value.to(self._device)
        return self.tensor_to_device(value) if isinstance(value, torch.Tensor) else value


def _map_batch(batch: Any, map_fn: Callable[[Any], Any]) -> Any:
    """Applies ``map_fn`` to every leaf of a nested batch."""
    # Most are tensors: told at once, they are not asked the rest. A packed sequence, a named tuple,
    # keeps one of its tensors on the CPU.
    if isinstance(batch, (torch.Tensor, PackedSequence)):
        return map_fn(batch)
    if isinstance(batch, Mapping):
        return {key: _map_batch(value, map_fn) for key, value in batch.items()}
    if isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)):
        moved = [_map_batch(item, map_fn) for item in batch]
        if type(batch) is list:
            return moved
        try:
            return type(batch)(moved)  # type: ignore[call-arg]  # a sequence type of one argument
        except TypeError:  # a named tuple, for one, takes its fields one by one
            return moved
    return map_fn(batch)
