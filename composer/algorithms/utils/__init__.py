"""What several algorithms share."""

from composer.algorithms.utils.augmentation_primitives import augmentation_sets

__all__ = ["augmentation_sets"]
