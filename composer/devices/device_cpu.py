"""The CPU."""

from __future__ import annotations

import torch

from composer.devices.device import Device, T_nnModule


class DeviceCPU(Device):
    """Trains on the CPU."""

    dist_backend = "gloo"
    name = "cpu"
    _device = torch.device("cpu")

    def module_to_device(self, module: T_nnModule) -> T_nnModule:
        """Moves the module to the CPU and returns it."""
        return module.to(self._device)

    def tensor_to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor on the CPU."""
        return tensor.to(self._device)
