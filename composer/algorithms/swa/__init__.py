"""Stochastic weight averaging."""

from composer.algorithms.swa.swa import SWA

__all__ = ["SWA"]
