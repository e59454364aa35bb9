"""Maximal update parametrisation."""

from composer.algorithms.mup.mup import MuP

__all__ = ["MuP"]
