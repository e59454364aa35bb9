"""Squeeze and excite: channels weighed by what the whole image shows (Hu et al., 1709.01507)."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer

from composer.algorithms.utils.surgery import (
    ModelSurgery,
    OnNoMatch,
    computes_as,
    report_no_match,
    stays,
)
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.module_surgery import count_module_instances, replace_module_classes

M = TypeVar("M", bound=torch.nn.Module)


class SqueezeExcite2d(torch.nn.Module):
    """Scales each channel by a number in (0, 1), computed from the means of all channels.

    Args:
        num_features: How many channels there are.
        latent_channels: The width of the hidden layer; below 1, as a fraction of the channels.
    """

    def __init__(self, num_features: int, latent_channels: float = 0.125) -> None:
        super().__init__()
        if latent_channels <= 0:
            raise ValueError(f"latent_channels={latent_channels} must be positive.")
        width = latent_channels if latent_channels >= 1 else latent_channels * num_features
        self.latent_channels = max(1, int(width))
        self.pool_and_mlp = torch.nn.Sequential(
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(num_features, self.latent_channels, bias=False),
            torch.nn.ReLU(),
            torch.nn.Linear(self.latent_channels, num_features, bias=False),
            torch.nn.Sigmoid(),
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the scaled channels."""
        return input * self.pool_and_mlp(input)[:, :, None, None]


class SqueezeExciteConv2d(torch.nn.Module):
    """A `torch.nn.Conv2d` followed by a `SqueezeExcite2d`.

    Args:
        args: Of the convolution, if none is given.
        latent_channels: As in `SqueezeExcite2d`.
        conv: The convolution.
        kwargs: Of the convolution, if none is given.
    """

    def __init__(
        self,
        *args: Any,
        latent_channels: float = 0.125,
        conv: torch.nn.Conv2d | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(*args, **kwargs) if conv is None else conv
        self.se = SqueezeExcite2d(self.conv.out_channels, latent_channels)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the convolution of the input, channels scaled."""
        return self.se(self.conv(input))

    @staticmethod
    def from_conv2d(
        module: torch.nn.Conv2d, module_index: int, latent_channels: float
    ) -> "SqueezeExciteConv2d":
        """Puts a new `SqueezeExcite2d` after a convolution, which stays the same object."""
        del module_index
        weight = module.weight
        after = SqueezeExciteConv2d(conv=module, latent_channels=latent_channels)
        after.se.to(weight.device, weight.dtype)
        return after.train(module.training)


def apply_squeeze_excite(
    model: M,
    latent_channels: float = 64,
    min_channels: int = 128,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    on_no_match: OnNoMatch = "raise",
) -> M:
    """Puts a `SqueezeExcite2d` after every wide convolution; changes and returns the model.

    Args:
        model: The model.
        latent_channels: The width of the hidden layers; below 1, as a fraction of the channels.
        min_channels: Convolutions that read or make fewer channels are left alone.
        optimizers: The optimizer, which is given the new parameters.
        on_no_match: ``"raise"`` or ``"warn"`` if no convolution is wide enough.

    Raises:
        NoMatchError: If no convolution is wide enough.
    """

    def excited(module: Any, index: int) -> torch.nn.Module | None:
        narrow = min(module.in_channels, module.out_channels) < min_channels
        if narrow or not computes_as(module, torch.nn.Conv2d):
            return None
        return SqueezeExciteConv2d.from_conv2d(module, index, latent_channels)

    policies: dict[Any, Any] = {SqueezeExciteConv2d: stays, torch.nn.Conv2d: excited}
    if not replace_module_classes(model, policies, optimizers):
        wanted = f"no Conv2d that reads and makes at least min_channels={min_channels} channels"
        report_no_match("SqueezeExcite", wanted, on_no_match)
    return model


class SqueezeExcite(ModelSurgery):
    """Puts a `SqueezeExcite2d` after every wide convolution: more accuracy for little time.

    Args:
        latent_channels: The width of the hidden layers; below 1, as a fraction of the channels.
        min_channels: Convolutions that read or make fewer channels are left alone.
        on_no_match: ``"raise"`` or ``"warn"`` if no convolution is wide enough.
    """

    def __init__(
        self,
        latent_channels: float = 64,
        min_channels: int = 128,
        on_no_match: OnNoMatch = "raise",
    ) -> None:
        super().__init__(on_no_match)
        self.latent_channels = latent_channels
        self.min_channels = min_channels

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the convolutions of the model."""
        apply_squeeze_excite(
            state.model,
            self.latent_channels,
            self.min_channels,
            state.optimizers,
            self.on_no_match,
        )
        count = count_module_instances(state.model, SqueezeExciteConv2d)
        logger.log_hyperparameters({"squeeze_excite/num_squeeze_excite_layers": count})
        return None
