"""Images with their targets, through transforms."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from streaming.base.dataset import StreamingDataset

__all__ = ["StreamingVisionDataset", "to_tensor"]

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
