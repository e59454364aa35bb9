"""Sharpness-aware minimisation."""

from composer.algorithms.sam.sam import SAM, SAMOptimizer

__all__ = ["SAM", "SAMOptimizer"]
