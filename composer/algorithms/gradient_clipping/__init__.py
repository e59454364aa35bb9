"""Gradient clipping by total norm, by value, or adaptively."""

from composer.algorithms.gradient_clipping.gradient_clipping import (
    GradientClipping,
    apply_gradient_clipping,
)

__all__ = ["GradientClipping", "apply_gradient_clipping"]
