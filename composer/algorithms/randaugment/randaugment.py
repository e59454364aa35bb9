"""RandAugment: a few random changes of each image."""

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


def randaugment_image(
    img: T,
    severity: int = 9,
    depth: int = 2,
    augmentation_set: Sequence[AugmentationFn] = augmentation_sets["all"],
) -> T:
    """Changes an image in randomly chosen ways (RandAugment, Cubuk et al., 2020).

    Args:
        img: A Pillow image, or a tensor of one (C, H, W) or several (N, C, H, W) images, bytes or
            floats from 0 to 1.
        severity: How strong the changes are, 0 to 10.
        depth: How many, one after the other.
        augmentation_set: What to choose them from.
    """
    change = functools.partial(
        _randaugment_pillow, severity=severity, depth=depth, augmentation_set=augmentation_set
    )
    return map_pillow_function(change, img)


def _randaugment_pillow(
    img: Image.Image, severity: int, depth: int, augmentation_set: Sequence[AugmentationFn]
) -> Image.Image:
    for _ in range(depth):
        img = augmentation_set[np.random.randint(len(augmentation_set))](img, severity)
    return img


class RandAugmentTransform(torch.nn.Module):
    """Applies `randaugment_image`, as a transform of a dataset of images.

    Args:
        severity: How strong the changes are, 0 to 10.
        depth: How many, one after the other.
        augmentation_set: ``"all"``, ``"safe"`` or ``"original"``.

    Raises:
        ValueError: If severity or depth is out of range.
        KeyError: For an unknown set.
    """

    def __init__(self, severity: int = 9, depth: int = 2, augmentation_set: str = "all") -> None:
        super().__init__()
        _check(severity, depth, augmentation_set)
        self.severity = severity
        self.depth = depth
        self.augmentation_set = augmentation_set

    def forward(self, img: T) -> T:
        """Returns the augmented image."""
        return randaugment_image(
            img, self.severity, self.depth, augmentation_sets[self.augmentation_set]
        )


def _check(severity: int, depth: int, augmentation_set: str) -> None:
    check_augmentation(severity, augmentation_set)
    if depth < 0:
        raise ValueError(f"depth={depth} must not be negative: it counts changes")


class RandAugment(DatasetTransform):
    """Changes each training image in randomly chosen ways (RandAugment, Cubuk et al., 2020).

    It adds a `RandAugmentTransform` to the dataset, before the images become tensors.

    Args:
        severity: How strong the changes are, 0 to 10.
        depth: How many, one after the other.
        augmentation_set: ``"all"``; ``"safe"`` leaves out what a test of robustness measures;
            ``"original"`` has the ranges of the AugMix paper.

    Raises:
        ValueError: If severity or depth is out of range.
        KeyError: For an unknown set.
    """

    def __init__(self, severity: int = 9, depth: int = 2, augmentation_set: str = "all") -> None:
        super().__init__()
        _check(severity, depth, augmentation_set)
        self.severity = severity
        self.depth = depth
        self.augmentation_set = augmentation_set

    def make_transform(self) -> Callable[[Any], Any]:
        """Returns the transform of one image."""
        return RandAugmentTransform(self.severity, self.depth, self.augmentation_set)
