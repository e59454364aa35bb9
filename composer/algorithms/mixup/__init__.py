"""MixUp: trains on weighted sums of two samples."""

from composer.algorithms.mixup.mixup import MixUp, mixup_batch

__all__ = ["MixUp", "mixup_batch"]
