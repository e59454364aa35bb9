"""RandAugment: a few random changes of each image."""

from composer.algorithms.randaugment.randaugment import (
    RandAugment,
    RandAugmentTransform,
    randaugment_image,
)

__all__ = ["RandAugment", "RandAugmentTransform", "randaugment_image"]
