"""GPUs of Apple silicon."""

from __future__ import annotations

import torch

from composer.devices.device import Device, T_nnModule


class DeviceMPS(Device):
    """Trains on the GPU of an Apple computer, in one process.

    Raises:
        RuntimeError: If torch sees no such GPU.
    """

    dist_backend = ""
    name = "mps"

    def __init__(self) -> None:
        if not torch.backends.mps.is_available():
            raise RuntimeError(
                "DeviceMPS cannot be created: torch.backends.mps is not available. It needs an "
                "Apple silicon computer and a torch build for it"
            )
        self._device = torch.device("mps")

    def module_to_device(self, module: T_nnModule) -> T_nnModule:
        """Moves the module to the GPU and returns it."""
        return module.to(self._device)

    def tensor_to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor on the GPU."""
        return tensor.to(self._device)
