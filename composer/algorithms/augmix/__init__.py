"""AugMix: mixes chains of random changes of an image."""

from composer.algorithms.augmix.augmix import AugmentAndMixTransform, AugMix, augmix_image

__all__ = ["AugMix", "AugmentAndMixTransform", "augmix_image"]
