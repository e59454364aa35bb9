"""Blur pool: strided layers made free of aliasing by a blur."""

from composer.algorithms.blurpool.blurpool import BlurPool, apply_blurpool
from composer.algorithms.blurpool.blurpool_layers import (
    BlurConv2d,
    BlurMaxPool2d,
    BlurPool2d,
    blur_2d,
    blurmax_pool2d,
)

__all__ = [
    "BlurConv2d",
    "BlurMaxPool2d",
    "BlurPool",
    "BlurPool2d",
    "apply_blurpool",
    "blur_2d",
    "blurmax_pool2d",
]
