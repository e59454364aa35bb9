"""The mathematics of the algorithms as free functions, for use without a Trainer."""

from composer.algorithms.gradient_clipping.gradient_clipping import apply_gradient_clipping

__all__ = ["apply_gradient_clipping"]
