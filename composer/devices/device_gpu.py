"""NVIDIA and AMD GPUs, through torch.cuda."""

from __future__ import annotations

import torch

from composer.devices.device import Device, T_nnModule
from composer.utils import dist


class DeviceGPU(Device):
    """Trains on a GPU and makes it torch's current one.

    Args:
        device_id: Which GPU; this process's local rank if None.
        allow_tf32: Whether float32 matrix products and convolutions may use TensorFloat-32.

    Raises:
        ValueError: If torch sees no GPU.
    """

    dist_backend = "nccl"
    name = "gpu"

    def __init__(self, device_id: int | None = None, *, allow_tf32: bool = True) -> None:
        if not torch.cuda.is_available():
            raise ValueError(
                "DeviceGPU cannot be created: torch.cuda is not available. Train with "
                "device='cpu', or install a torch build with CUDA on a machine that has a GPU"
            )
        if device_id is None:
            device_id = dist.get_local_rank()
        self._device = torch.device("cuda", device_id)
        torch.cuda.set_device(self._device)
        torch.backends.cuda.matmul.allow_tf32 = allow_tf32
        torch.backends.cudnn.allow_tf32 = allow_tf32

    def module_to_device(self, module: T_nnModule) -> T_nnModule:
        """Moves the module to the GPU and returns it."""
        return module.to(self._device)

    def tensor_to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor on the GPU; from pinned memory the copy does not block."""
        return tensor.to(self._device, non_blocking=True)
