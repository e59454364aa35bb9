"""The one adapter to torch_xla, for the devices that are reached through it."""

from __future__ import annotations

import torch

from composer.devices.device import Device, T_nnModule


class DeviceXLA(Device):
    """Moves things to torch_xla's device.

    Raises:
        ImportError: If torch_xla is not installed.
    """

    dist_backend = "xla"

    def __init__(self) -> None:
        try:
            import torch_xla  # pyright: ignore[reportMissingImports]  # optional
        except ImportError as error:
            raise ImportError(
                f"Device {self.name!r} needs torch_xla: install the torch_xla that belongs to your "
                "torch (`pip install torch_xla`)"
            ) from error
        self._device = torch_xla.device()

    def module_to_device(self, module: T_nnModule) -> T_nnModule:
        """Moves the module to the device and returns it."""
        return module.to(self._device)

    def tensor_to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor on the device."""
        return tensor.to(self._device)
