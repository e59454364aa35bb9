"""Well-known image data sets, by the columns that their shards have."""

from collections.abc import Callable
from typing import Any

from streaming.base.dataset import StreamingDataset
from streaming.vision.base import StreamingVisionDataset, Transform

__all__ = ["StreamingADE20K", "StreamingCIFAR10", "StreamingCOCO", "StreamingImageNet"]


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
