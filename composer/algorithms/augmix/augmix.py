"""AugMix: mixes chains of random changes of an image."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from composer.algorithms.utils.augmentation_common import ImageLike, map_pillow_function
from composer.algorithms.utils.augmentation_primitives import (
    AugmentationFn,
    augmentation_sets,
    check_augmentation,
)
from composer.algorithms.utils.dataset_transforms import DatasetTransform

T = TypeVar("T", bound=ImageLike)


def augmix_image(
    img: T,
    severity: int = 3,
    depth: int = -1,
    width: int = 3,
    alpha: float = 1.0,
    augmentation_set: Sequence[AugmentationFn] = augmentation_sets["all"],
) -> T:
    """Mixes an image with chains of random changes of it (AugMix, Hendrycks et al., 2020).

    Args:
        img: A Pillow image, or a tensor of one (C, H, W) or several (N, C, H, W) images, bytes or
            floats from 0 to 1.
        severity: How strong the changes are, 0 to 10.
        depth: Changes in a chain; from 1 to 3, drawn for each chain, if not above 0.
        width: Chains.
        alpha: Draws the chains' weights from a Dirichlet and the image's from a Beta distribution
            with this concentration.
        augmentation_set: What to choose the changes from.
    """
    change = functools.partial(
        _augmix_pillow,
        severity=severity,
        depth=depth,
        width=width,
        alpha=alpha,
        augmentation_set=augmentation_set,
    )
    return map_pillow_function(change, img)


def _augmix_pillow(
    img: Image.Image,
    severity: int,
    depth: int,
    width: int,
    alpha: float,
    augmentation_set: Sequence[AugmentationFn],
) -> Image.Image:
    weights = np.random.dirichlet([alpha] * width).astype(np.float32)
    share = np.float32(np.random.beta(alpha, alpha))
    original = np.asarray(img, dtype=np.float32)
    mixture = np.zeros_like(original)
    for weight in weights:
        changed = img
        for _ in range(depth if depth > 0 else np.random.randint(1, 4)):
            changed = augmentation_set[np.random.randint(len(augmentation_set))](changed, severity)
        mixture += weight * np.asarray(changed)
    return Image.fromarray(((1 - share) * original + share * mixture).astype(np.uint8))


class AugmentAndMixTransform(torch.nn.Module):
    """Applies `augmix_image`, as a transform of a dataset of images.

    Args:
        severity: How strong the changes are, 0 to 10.
        depth: Changes in a chain; from 1 to 3, drawn for each chain, if not above 0.
        width: Chains.
        alpha: Concentration of the weights' distributions.
        augmentation_set: ``"all"``, ``"safe"`` or ``"original"``.

    Raises:
        ValueError: If severity, width or alpha is out of range.
        KeyError: For an unknown set.
    """

    def __init__(
        self,
        severity: int = 3,
        depth: int = -1,
        width: int = 3,
        alpha: float = 1.0,
        augmentation_set: str = "all",
    ) -> None:
        super().__init__()
        _check(severity, width, alpha, augmentation_set)
        self.severity = severity
        self.depth = depth
        self.width = width
        self.alpha = alpha
        self.augmentation_set = augmentation_set

    def forward(self, img: T) -> T:
        """Returns the augmented image."""
        return augmix_image(
            img,
            self.severity,
            self.depth,
            self.width,
            self.alpha,
            augmentation_sets[self.augmentation_set],
        )


def _check(severity: int, width: int, alpha: float, augmentation_set: str) -> None:
    check_augmentation(severity, augmentation_set)
    if width < 1:
        raise ValueError(f"width={width} must be at least 1: there is no mixture without a chain")
    if alpha <= 0:
        raise ValueError(f"alpha={alpha} must be above 0: it is a concentration")


class AugMix(DatasetTransform):
    """Mixes each training image with random changes of it (AugMix, Hendrycks et al., 2020).

    It adds an `AugmentAndMixTransform` to the dataset, before the images become tensors.

    Args:
        severity: How strong the changes are, 0 to 10.
        depth: Changes in a chain; from 1 to 3, drawn for each chain, if not above 0.
        width: Chains.
        alpha: Concentration of the weights' distributions.
        augmentation_set: ``"all"``; ``"safe"`` leaves out what a test of robustness measures;
            ``"original"`` has the paper's ranges.

    Raises:
        ValueError: If severity, width or alpha is out of range.
        KeyError: For an unknown set.
    """

    def __init__(
        self,
        severity: int = 3,
        depth: int = -1,
        width: int = 3,
        alpha: float = 1.0,
        augmentation_set: str = "all",
    ) -> None:
        super().__init__()
        _check(severity, width, alpha, augmentation_set)
        self.severity = severity
        self.depth = depth
        self.width = width
        self.alpha = alpha
        self.augmentation_set = augmentation_set

    def make_transform(self) -> Callable[[Any], Any]:
        """Returns the transform of one image."""
        return AugmentAndMixTransform(
            self.severity, self.depth, self.width, self.alpha, self.augmentation_set
        )
