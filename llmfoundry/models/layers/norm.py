"""Normalisation layers, and their low-precision forms for autocast.

Legend: B batch, S sequence, E model width.
"""

import contextlib
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F

__all__ = ["LPLayerNorm", "LPRMSNorm", "RMSNorm", "TritonRMSNorm", "autocast_dtype"]


def autocast_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Returns the dtype that a matrix product with ``tensor`` has here: autocast's, or its own."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return tensor.dtype


def _without_autocast(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Returns a context without autocast; without any autocast, it costs nothing to enter."""
    device = tensor.device.type
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return contextlib.nullcontext()


def _cast(tensor: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    return None if tensor is None else tensor.to(dtype)


class LPLayerNorm(torch.nn.LayerNorm):
    """LayerNorm that stays in autocast's dtype, where torch's own goes back to fp32."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises the last dimension."""
        x_BSE, dtype = input, autocast_dtype(input)
        with _without_autocast(x_BSE):
            return F.layer_norm(
                x_BSE.to(dtype),
                self.normalized_shape,
                _cast(self.weight, dtype),
                _cast(self.bias, dtype),
                self.eps,
            )


class RMSNorm(torch.nn.RMSNorm):
    """RMS norm: divides by the root mean square, without centring and without bias."""


class LPRMSNorm(RMSNorm):
    """RMS norm that computes in autocast's dtype and returns its input's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises the last dimension."""
        x_BSE, dtype = x, autocast_dtype(x)
        with _without_autocast(x_BSE):
            y_BSE = F.rms_norm(
                x_BSE.to(dtype), self.normalized_shape, _cast(self.weight, dtype), self.eps
            )
        return y_BSE.to(x_BSE.dtype)


class TritonRMSNorm(LPRMSNorm):
    """The name under which old recipes ask for a fused RMS norm; torch's own is fused now.

    Raises:
        ValueError: ``normalized_shape`` is not one number.
    """

    def __init__(
        self, normalized_shape: int, eps: float = 1e-5, device: str | torch.device | None = None
    ) -> None:
        if not isinstance(normalized_shape, int):
            raise ValueError(
                "triton_rmsnorm normalises one dimension, given by its size; got "
                f"{normalized_shape!r}. Use norm_type: rmsnorm for more."
            )
        super().__init__(normalized_shape, eps=eps, device=device)
