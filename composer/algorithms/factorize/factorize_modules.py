"""Layers in two factors: fewer numbers pass between them than go in or come out."""

import math
from abc import abstractmethod
from typing import Any

import torch

from composer.algorithms.factorize.factorize_core import (
    LowRankSolution,
    factorize_conv2d,
    factorize_matrix,
)


def _latent_size(latent: float, n_in: int, n_out: int) -> int:
    """Returns a size that may have been given as a part of the smaller one."""
    return max(1, int(latent * min(n_in, n_out))) if latent < 1 else int(latent)


def _max_latent(fan_in: int, n_out: int) -> int:
    """Returns the largest size at which two factors cost less than one map."""
    return math.ceil(fan_in * n_out / (fan_in + n_out) - 1)


def _fan_in(conv: Any) -> int:
    return conv.in_channels * math.prod(conv.kernel_size)


def factorizing_could_speedup(module: torch.nn.Module, latent_size: float) -> bool:
    """Tells whether a Linear or Conv2d would do fewer operations in two factors of a size.

    Args:
        module: The layer; False for one of another class.
        latent_size: How many numbers pass between the factors; below 1, as a part of the smaller of
            inputs and outputs.
    """
    if isinstance(module, torch.nn.Conv2d):
        latent = _latent_size(latent_size, module.in_channels, module.out_channels)
        return module.groups == 1 and latent <= _max_latent(_fan_in(module), module.out_channels)
    if isinstance(module, torch.nn.Linear):
        latent = _latent_size(latent_size, module.in_features, module.out_features)
        return latent <= _max_latent(module.in_features, module.out_features)
    return False


class _FactorizedModule(torch.nn.Module):
    """What factorized layers share.

    Args:
        latent: How many numbers pass between the factors.
        largest: With more than that, two factors cost more than one map.
    """

    module0: torch.nn.Module
    module1: torch.nn.Module

    def __init__(self, latent: int, largest: int) -> None:
        super().__init__()
        if latent > largest:
            raise ValueError(
                f"A latent size of {latent} would make the layer slower: at most {largest} pays."
            )
        self.latent_size = latent

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Applies one factor after the other."""
        return self.module1(self.module0(input))

    def reset_parameters(self) -> None:
        """Initialises both factors anew."""
        for factor in (self.module0, self.module1):
            factor.reset_parameters()  # type: ignore[operator]

    def should_factorize(self, proposed_rank: int) -> bool:
        """Tells whether a rank is lower than the one that the layer has."""
        return proposed_rank < self.latent_size

    def set_rank(self, input: torch.Tensor, rank: int) -> None:
        """Lowers the rank, so that on an input the output changes least.

        Raises:
            ValueError: If the rank is higher than the one that the layer has.
        """
        if rank > self.latent_size:
            raise ValueError(
                f"The rank {rank} is higher than the layer's, {self.latent_size}; it can only be "
                "lowered."
            )
        if rank < self.latent_size:
            self.apply_solution(self.solution_for_rank(input, rank))

    @abstractmethod
    def solution_for_rank(self, input: torch.Tensor, rank: int) -> LowRankSolution:
        """Returns the factors of a lower rank that do best on an input."""

    @abstractmethod
    def apply_solution(self, solution: LowRankSolution) -> None:
        """Goes on with other factors; optimizers have to be told of them."""


class FactorizedConv2d(_FactorizedModule):
    """A convolution to few channels, then a 1 x 1 convolution to all of them.

    Args:
        in_channels: As in `torch.nn.Conv2d`.
        out_channels: As in `torch.nn.Conv2d`.
        kernel_size: As in `torch.nn.Conv2d`.
        latent_channels: How many channels pass between the two; below 1, as a part of the smaller
            of inputs and outputs.
        kwargs: Of the first convolution; ``bias`` goes to the second.

    Raises:
        NotImplementedError: If there are groups.
        ValueError: If two convolutions would cost more than one.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        latent_channels: float = 0.25,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("groups", 1) != 1:
            raise NotImplementedError("A convolution in groups cannot be factorized.")
        latent = _latent_size(latent_channels, in_channels, out_channels)
        largest = self.max_allowed_latent_features(in_channels, out_channels, kernel_size)
        super().__init__(latent, largest)
        bias = kwargs.pop("bias", True)
        placed = {key: kwargs[key] for key in ("device", "dtype") if key in kwargs}
        self.module0 = torch.nn.Conv2d(in_channels, latent, kernel_size, bias=False, **kwargs)
        self.module1 = torch.nn.Conv2d(latent, out_channels, 1, bias=bias, **placed)

    @property
    def in_channels(self) -> int:
        """How many channels it reads."""
        return self.module0.in_channels  # type: ignore[return-value]

    @property
    def out_channels(self) -> int:
        """How many channels it makes."""
        return self.module1.out_channels  # type: ignore[return-value]

    @property
    def latent_channels(self) -> int:
        """How many channels pass between the two convolutions."""
        return self.latent_size

    # Its name and that of the linear layer's counterpart are the wrong way round, as ever.
    @staticmethod
    def max_allowed_latent_features(
        in_features: int, out_features: int, kernel_size: int | tuple[int, int]
    ) -> int:
        """Returns with how many channels in between two convolutions still cost less than one."""
        sides = (kernel_size,) * 2 if isinstance(kernel_size, int) else kernel_size
        return _max_latent(in_features * math.prod(sides), out_features)

    def solution_for_rank(self, input: torch.Tensor, rank: int) -> LowRankSolution:
        """Returns the factors of a lower rank that do best on an input."""
        first: Any = self.module0
        second: Any = self.module1
        settings = {name: getattr(first, name) for name in ("stride", "padding", "dilation")}
        return factorize_conv2d(
            input, first.weight, second.weight, rank, None, second.bias, **settings
        )

    def apply_solution(self, solution: LowRankSolution) -> None:
        """Goes on with other factors; optimizers have to be told of them."""
        assert solution.Wa is not None and solution.Wb is not None
        _take(self.module0, solution.Wa, None)
        _take(self.module1, solution.Wb, solution.bias)
        self.latent_size = solution.rank
        self.module0.out_channels = self.module1.in_channels = solution.rank  # type: ignore[assignment]

    @staticmethod
    def from_conv2d(
        module: torch.nn.Conv2d, module_ix: int = -1, **kwargs: Any
    ) -> "FactorizedConv2d":
        """Makes a layer like a convolution, with weights of its own.

        Args:
            module: The convolution.
            module_ix: Accepted for the sake of a common signature.
            kwargs: Of the layer, such as ``latent_channels``; what is left out is as in ``module``.
        """
        del module_ix
        names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation")
        settings: dict[str, Any] = {name: getattr(module, name) for name in names}
        settings |= {
            "groups": module.groups,
            "padding_mode": module.padding_mode,
            "bias": module.bias is not None,
            "device": module.weight.device,
            "dtype": module.weight.dtype,
        }
        return FactorizedConv2d(**(settings | kwargs)).train(module.training)


class FactorizedLinear(_FactorizedModule):
    """A linear layer to few features, then one to all of them.

    Args:
        in_features: As in `torch.nn.Linear`.
        out_features: As in `torch.nn.Linear`.
        bias: Whether the second layer has a bias.
        latent_features: How many features pass between the two; below 1, as a part of the smaller
            of inputs and outputs.
        device: Where the parameters are.
        dtype: What they are.

    Raises:
        ValueError: If two layers would cost more than one.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        latent_features: float = 0.25,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        latent = _latent_size(latent_features, in_features, out_features)
        super().__init__(latent, self.max_allowed_latent_channels(in_features, out_features))
        self.in_features = in_features
        self.out_features = out_features
        self.module0 = torch.nn.Linear(in_features, latent, bias=False, device=device, dtype=dtype)
        self.module1 = torch.nn.Linear(latent, out_features, bias=bias, device=device, dtype=dtype)

    @property
    def latent_features(self) -> int:
        """How many features pass between the two layers."""
        return self.latent_size

    @staticmethod
    def max_allowed_latent_channels(in_features: int, out_features: int) -> int:
        """Returns with how many features in between two layers still cost less than one."""
        return _max_latent(in_features, out_features)

    def solution_for_rank(self, input: torch.Tensor, rank: int) -> LowRankSolution:
        """Returns the factors of a lower rank that do best on an input."""
        first: Any = self.module0
        second: Any = self.module1
        rows = input.detach().flatten(0, -2)
        wa, wb = first.weight.detach().T, second.weight.detach().T
        return factorize_matrix(rows, rows @ wa @ wb, wa, wb, second.bias, rank)

    def apply_solution(self, solution: LowRankSolution) -> None:
        """Goes on with other factors; optimizers have to be told of them."""
        assert solution.Wa is not None and solution.Wb is not None
        _take(self.module0, solution.Wa.T, None)
        _take(self.module1, solution.Wb.T, solution.bias)
        self.latent_size = solution.rank
        self.module0.out_features = self.module1.in_features = solution.rank  # type: ignore[assignment]

    @staticmethod
    def from_linear(
        module: torch.nn.Linear, module_ix: int = -1, **kwargs: Any
    ) -> "FactorizedLinear":
        """Makes a layer like a linear one, with weights of its own.

        Args:
            module: The linear layer.
            module_ix: Accepted for the sake of a common signature.
            kwargs: Of the layer, such as ``latent_features``; what is left out is as in ``module``.
        """
        del module_ix
        settings: dict[str, Any] = {
            "in_features": module.in_features,
            "out_features": module.out_features,
            "bias": module.bias is not None,
            "device": module.weight.device,
            "dtype": module.weight.dtype,
        }
        return FactorizedLinear(**(settings | kwargs)).train(module.training)


def _take(factor: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    factor.weight = torch.nn.Parameter(weight.contiguous())
    if bias is not None:  # what the layer has then, even if it had none
        factor.bias = torch.nn.Parameter(bias)
