"""Algorithms: plug-ins that change training."""

from composer.algorithms.gradient_clipping import GradientClipping

__all__ = ["GradientClipping"]
