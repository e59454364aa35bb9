"""CutOut: blacks out squares of the images."""

from typing import Any

import numpy as np
import torch

from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State


def cutout_batch(
    input: torch.Tensor, num_holes: int = 1, length: float = 0.5, uniform_sampling: bool = False
) -> torch.Tensor:
    """Sets squares to zero, the same in all images of a batch (CutOut, DeVries & Taylor, 2017).

    Args:
        input: Images, (..., H, W).
        num_holes: How many squares.
        length: Their side, as a fraction of the images' shorter side.
        uniform_sampling: Lets every pixel be cut equally often: centres may be outside of the
            image. Otherwise they are inside, and the middle is cut more often.

    Returns:
        New images.
    """
    height, width = input.shape[-2:]
    side = int(min(height, width) * length)
    margin = side if uniform_sampling else 0
    mask = torch.ones(height, width, dtype=input.dtype)
    for _ in range(num_holes):
        y = int(np.random.randint(-margin // 2, height + margin // 2))
        x = int(np.random.randint(-margin // 2, width + margin // 2))
        mask = _generate_mask(mask, width, height, x, y, side)
    return input * mask.to(input.device, non_blocking=True)


def _generate_mask(
    mask: torch.Tensor, width: int, height: int, x: int, y: int, cutout_length: int
) -> torch.Tensor:
    """Sets a square of the mask (its last two axes) to zero, in place; returns the mask."""
    half = cutout_length // 2
    rows = slice(max(y - half, 0), min(max(y + half, 0), height))
    columns = slice(max(x - half, 0), min(max(x + half, 0), width))
    mask[..., rows, columns] = 0
    return mask


class CutOut(Algorithm):
    """Sets squares of the images to zero (CutOut, DeVries & Taylor, 2017).

    The squares are the same for all images of a batch, and new for each batch.

    Args:
        num_holes: How many squares.
        length: Their side, as a fraction of the images' shorter side.
        uniform_sampling: Lets every pixel be cut equally often: centres may be outside of the
            image. Otherwise they are inside, and the middle is cut more often.
        input_key: Where in the batch the images are: a key, an index, or a (getter, setter) pair.
    """

    def __init__(
        self,
        num_holes: int = 1,
        length: float = 0.5,
        uniform_sampling: bool = False,
        input_key: Any = 0,
    ) -> None:
        if not 0 < length <= 1:
            raise ValueError(
                f"length={length} must be a fraction of the image's side: above 0, and at most 1"
            )
        self.num_holes = num_holes
        self.length = length
        self.uniform_sampling = uniform_sampling
        self.input_key = input_key

    def match(self, event: Event, state: State) -> bool:
        """Matches when a batch has been loaded."""
        return event == Event.AFTER_DATALOADER

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Cuts the images of the batch."""
        images = state.batch_get_item(self.input_key)
        if not isinstance(images, torch.Tensor):
            raise NotImplementedError(
                f"CutOut takes a tensor of images, not {type(images).__name__}; point input_key at "
                "one"
            )
        cut = cutout_batch(images, self.num_holes, self.length, self.uniform_sampling)
        state.batch_set_item(self.input_key, cut)
        return None
