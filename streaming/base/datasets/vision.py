"""Images with their targets: through transforms, and well-known sets by their columns."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from streaming.base.dataset import StreamingDataset

__all__ = [
    "StreamingADE20K",
    "StreamingCIFAR10",
    "StreamingCOCO",
    "StreamingImageNet",
    "StreamingVisionDataset",
    "to_tensor",
]

Transform = Callable[[Any], Any]


def to_tensor(image: Any) -> torch.Tensor:
    """Turns an image into a tensor: [channels, height, width], bytes as fractions of 255.

    Args:
        image: A PIL image or an array of [height, width] or [height, width, channels].
    """
    pixels = np.array(image)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    tensor = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
    return tensor.float().div_(255) if tensor.dtype == torch.uint8 else tensor


class StreamingVisionDataset(StreamingDataset):
    """Pairs of an image (column ``x``) and a target (column ``y``).

    Args:
        batch_size: Samples of a device batch.
        transforms: Takes image and target and returns both.
        transform: Takes the image; by default :func:`to_tensor`.
        target_transform: Takes the target.
        kwargs: As for :class:`StreamingDataset`.

    Raises:
        ValueError: ``transforms`` is given beside one of the other two.
    """

    def __init__(
        self,
        *,
        batch_size: int,
        transforms: Callable[[Any, Any], Any] | None = None,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        **kwargs: Any,
    ) -> None:
        if transforms is not None and (transform is not None or target_transform is not None):
            raise ValueError(
                "Pass `transforms`, which takes image and target, or `transform` and "
                "`target_transform`, which take one each, not both kinds."
            )
        super().__init__(batch_size=batch_size, **kwargs)
        self.transforms = transforms
        self.transform, self.target_transform = transform or to_tensor, target_transform

    def get_item(self, sample_id: int, retry: int = 7) -> tuple[Any, Any]:
        """Returns an image and its target.

        Args:
            sample_id: Number of the sample.
            retry: As for :class:`StreamingDataset`.
        """
        row = super().get_item(sample_id, retry)
        image, target = row["x"], row["y"]
        if self.transforms is not None:
            return self.transforms(image, target)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return self.transform(image), target


class StreamingCIFAR10(StreamingVisionDataset):
    """CIFAR-10 (Krizhevsky, 2009): ``x`` an image, ``y`` its class."""


class StreamingImageNet(StreamingVisionDataset):
    """ImageNet (1409.0575): ``x`` an image, ``y`` its class."""


class StreamingADE20K(StreamingDataset):
    """ADE20K (1608.05442): ``x`` an image, ``y`` the class of each pixel.

    Args:
        joint_transform: Takes image and target and returns both; goes first.
        transform: Takes the image.
        target_transform: Takes the target.
        kwargs: As for :class:`StreamingDataset`.
    """

    def __init__(
        self,
        *,
        joint_transform: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.joint_transform = joint_transform
        self.transform, self.target_transform = transform, target_transform

    def get_item(self, sample_id: int, retry: int = 7) -> tuple[Any, Any]:
        """Returns an image and its target.

        Args:
            sample_id: Number of the sample.
            retry: As for :class:`StreamingDataset`.
        """
        row = super().get_item(sample_id, retry)
        image, target = row["x"], row["y"]
        if self.joint_transform is not None:
            image, target = self.joint_transform(image, target)
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target


class StreamingCOCO(StreamingDataset):
    """COCO (1405.0312): images with the boxes of objects.

    Args:
        transform: Takes image, size, boxes and labels, and returns all four.
        kwargs: As for :class:`StreamingDataset`.
    """

    def __init__(self, *, transform: Callable[..., Any] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.transform = transform

    def get_item(self, sample_id: int, retry: int = 7) -> tuple[Any, ...]:
        """Returns image, its number, (height, width), boxes and their labels.

        Args:
            sample_id: Number of the sample.
            retry: As for :class:`StreamingDataset`.
        """
        row = super().get_item(sample_id, retry)
        image, size = row["img"].convert("RGB"), (row["htot"], row["wtot"])
        boxes, labels = row["bbox_sizes"], row["bbox_labels"]
        if self.transform is not None:
            image, size, boxes, labels = self.transform(image, size, boxes, labels)
        return image, row["img_id"], size, boxes, labels
