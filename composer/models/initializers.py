"""Named schemes to initialise weights."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from composer.utils.string_enum import StringEnum

__all__ = ["Initializer"]


class Initializer(StringEnum):
    """A scheme to initialise the modules of one kind."""

    KAIMING_NORMAL = "kaiming_normal"
    """Normal weights of linear and convolution layers, scaled by the inputs."""

    KAIMING_UNIFORM = "kaiming_uniform"
    """Uniform weights of linear and convolution layers, scaled by the inputs."""

    BN_UNIFORM = "bn_uniform"
    """Batch norms with weights between 0 and 1 and without bias."""

    BN_ONES = "bn_ones"
    """Batch norms with weights of 1 and without bias."""

    XAVIER_UNIFORM = "xavier_uniform"
    """Uniform weights of linear and convolution layers, scaled by inputs and outputs."""

    XAVIER_NORMAL = "xavier_normal"
    """Normal weights of linear and convolution layers, scaled by inputs and outputs."""

    LINEAR_LOG_CONSTANT_BIAS = "linear_log_constant_bias"
    """Biases of linear layers such that all classes start equally likely."""

    def get_initializer(self) -> Callable[[nn.Module], None]:
        """Returns the function to hand to ``Module.apply``."""
        return _INITIALIZERS[self]


def _of_weights(fill: Callable[[torch.Tensor], object]) -> Callable[[nn.Module], None]:
    def initialize(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            fill(module.weight)

    return initialize


def _of_batch_norms(fill: Callable[[torch.Tensor], object]) -> Callable[[nn.Module], None]:
    def initialize(module: nn.Module) -> None:
        if isinstance(module, nn.BatchNorm2d):
            with torch.no_grad():
                fill(module.weight)
                module.bias.zero_()

    return initialize


def _log_constant_bias(module: nn.Module) -> None:
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.constant_(module.bias, -math.log(module.bias.shape[0]))


_INITIALIZERS: dict[Initializer, Callable[[nn.Module], None]] = {
    Initializer.KAIMING_NORMAL: _of_weights(nn.init.kaiming_normal_),
    Initializer.KAIMING_UNIFORM: _of_weights(nn.init.kaiming_uniform_),
    Initializer.BN_UNIFORM: _of_batch_norms(nn.init.uniform_),
    Initializer.BN_ONES: _of_batch_norms(nn.init.ones_),
    Initializer.XAVIER_UNIFORM: _of_weights(nn.init.xavier_uniform_),
    Initializer.XAVIER_NORMAL: _of_weights(nn.init.xavier_normal_),
    Initializer.LINEAR_LOG_CONSTANT_BIAS: _log_constant_bias,
}
