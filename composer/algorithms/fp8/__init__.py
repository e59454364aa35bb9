"""FP8: large linear layers multiply in 8-bit floating point."""

from composer.algorithms.fp8.fp8 import FP8, apply_fp8

__all__ = ["FP8", "apply_fp8"]
