"""Builds modules without memory: their parameters are made on another device, such as meta."""

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["init_empty_weights", "init_on_device"]


@contextlib.contextmanager
def init_on_device(device: torch.device | str, include_buffers: bool = False) -> Iterator[None]:
    """Moves each parameter to ``device`` as a module registers it.

    Args:
        device: Where parameters go.
        include_buffers: Whether buffers go there too.
    """
    device = torch.device(device)
    register_parameter = torch.nn.Module.register_parameter
    register_buffer = torch.nn.Module.register_buffer

    def register_parameter_there(
        self: torch.nn.Module, name: str, param: torch.nn.Parameter | None
    ) -> None:
        register_parameter(self, name, param)
        if param is not None and param.device != device:
            moved = type(param)(param.to(device), requires_grad=param.requires_grad)
            self._parameters[name] = moved

    def register_buffer_there(
        self: torch.nn.Module,
        name: str,
        tensor: torch.Tensor | None,
        persistent: bool = True,
    ) -> None:
        register_buffer(self, name, tensor, persistent)
        if tensor is not None:
            self._buffers[name] = tensor.to(device)

    torch.nn.Module.register_parameter = register_parameter_there
    if include_buffers:
        torch.nn.Module.register_buffer = register_buffer_there
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register_parameter
        torch.nn.Module.register_buffer = register_buffer


@contextlib.contextmanager
def init_empty_weights(include_buffers: bool = False) -> Iterator[None]:
    """Puts each parameter on the meta device as a module registers it."""
    with init_on_device("meta", include_buffers=include_buffers):
        yield
