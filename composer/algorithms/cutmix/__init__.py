"""CutMix: pastes a box of one image into another."""

from composer.algorithms.cutmix.cutmix import CutMix, cutmix_batch

__all__ = ["CutMix", "cutmix_batch"]
