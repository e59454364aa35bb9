"""Intel Gaudi, through habana_frameworks."""

from __future__ import annotations

import torch

from composer.devices.device import Device, T_nnModule


class DeviceHPU(Device):
    """Trains on an Intel Gaudi accelerator.

    Raises:
        ImportError: If habana_frameworks is not installed.
    """

    dist_backend = "hccl"
    name = "hpu"
    _device = torch.device("hpu")

    def __init__(self) -> None:
        try:
            # registers the device with torch
            import habana_frameworks.torch.hpu  # noqa: F401  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ImportError(
                "Device 'hpu' needs habana_frameworks: install Intel's Gaudi software"
            ) from error

    def module_to_device(self, module: T_nnModule) -> T_nnModule:
        """Moves the module to the accelerator and returns it."""
        return module.to(self._device)

    def tensor_to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor on the accelerator; the copy does not block."""
        return tensor.to(self._device, non_blocking=True)
