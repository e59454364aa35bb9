"""A linear layer that rounds as fp8 matrix products do, on any device."""

from typing import Any

import torch


class EmulatedFloat8Linear(torch.nn.Linear):
    """Computes what an fp8 linear layer does, in full precision on rounded operands.

    Inputs and weights are rounded to e4m3 and gradients to e5m2, each tensor by one scale that maps
    its largest magnitude to the largest that there is (arXiv 2209.05433). Products are summed in
    fp32, as tensor cores do. It is slower than a plain layer: it shows what fp8 does to quality.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns ``input @ weight.T + bias``."""
        device, dtype = input.device.type, input.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            output = _Product.apply(input, self.weight, dtype)
            return output if self.bias is None else output + self.bias.to(dtype)


class _Product(torch.autograd.Function):
    """``input @ weight.T`` of rounded operands, and its two gradients, likewise."""

    @staticmethod
    def forward(
        ctx: Any, input: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        rounded_input = rounded(input.to(dtype), torch.float8_e4m3fn)
        rounded_weight = rounded(weight.to(dtype), torch.float8_e4m3fn)
        ctx.save_for_backward(rounded_input, rounded_weight)
        ctx.dtypes = input.dtype, weight.dtype
        return (rounded_input @ rounded_weight.T).to(dtype)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # one output
        ctx: Any, grad_output: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        rounded_input, rounded_weight = ctx.saved_tensors
        input_dtype, weight_dtype = ctx.dtypes
        with torch.autocast(grad_output.device.type, enabled=False):
            gradient = rounded(grad_output, torch.float8_e5m2)
            to_input = (gradient @ rounded_weight).to(input_dtype)
            to_weight = gradient.flatten(0, -2).T @ rounded_input.flatten(0, -2)
        return to_input, to_weight.to(weight_dtype), None


def rounded(value: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Returns the nearest numbers, in fp32, that an 8-bit type has at the tensor's scale."""
    largest = torch.finfo(kind).max
    scale = (largest / value.abs().amax().double().clamp(min=1e-12)).float()
    return (value.float() * scale).clamp(-largest, largest).to(kind).float() / scale
