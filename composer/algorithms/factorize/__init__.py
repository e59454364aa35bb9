"""Factorize: wide layers replaced by two narrow ones."""

from composer.algorithms.factorize.factorize import Factorize, apply_factorization
from composer.algorithms.factorize.factorize_core import (
    LowRankSolution,
    factorize_conv2d,
    factorize_matrix,
)
from composer.algorithms.factorize.factorize_modules import (
    FactorizedConv2d,
    FactorizedLinear,
    factorizing_could_speedup,
)

__all__ = [
    "Factorize",
    "FactorizedConv2d",
    "FactorizedLinear",
    "LowRankSolution",
    "apply_factorization",
    "factorize_conv2d",
    "factorize_matrix",
    "factorizing_could_speedup",
]
