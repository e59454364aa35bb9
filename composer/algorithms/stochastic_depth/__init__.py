"""Stochastic depth: residual blocks left out at random."""

from composer.algorithms.stochastic_depth.stochastic_depth import (
    StochasticDepth,
    apply_stochastic_depth,
)
from composer.algorithms.stochastic_depth.stochastic_layers import StochasticBlock

__all__ = ["StochasticBlock", "StochasticDepth", "apply_stochastic_depth"]
