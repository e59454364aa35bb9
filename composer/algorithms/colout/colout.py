"""ColOut: leaves out rows and columns of the images."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from PIL import Image

from composer.algorithms.utils.augmentation_common import ImageLike, image_as_type
from composer.algorithms.utils.dataset_transforms import DatasetTransform
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State

Sample: TypeAlias = "ImageLike | tuple[Any, Any]"


def colout_batch(
    sample: Sample, p_row: float = 0.15, p_col: float = 0.15, resize_target: bool | str = "auto"
) -> Any:
    """Leaves out random rows and columns, the same in all images of a batch.

    Args:
        sample: Images (..., H, W), or a Pillow image; or a pair of these and the target.
        p_row: Fraction of the rows to leave out.
        p_col: Fraction of the columns.
        resize_target: Whether the target loses the same rows and columns; with ``"auto"`` if it is
            an image of the same size.

    Returns:
        The smaller images; with the target if it was given.

    Raises:
        ValueError: If a fraction or ``resize_target`` is none, or the sample is no pair.
    """
    _check(p_row, p_col, resize_target)
    images, *targets = sample if isinstance(sample, tuple) else (sample,)
    if len(targets) > 1:
        raise ValueError(
            f"A sample is an image or a pair of image and target, not {len(targets) + 1} parts"
        )
    height, width = _size(images)
    device = images.device if isinstance(images, torch.Tensor) else None
    rows = torch.randperm(height, device=device)[: int((1 - p_row) * height)].sort().values
    columns = torch.randperm(width, device=device)[: int((1 - p_col) * width)].sort().values
    smaller = _select(images, rows, columns)
    if not targets:
        return smaller
    target = targets[0]
    is_resized = resize_target
    if resize_target == "auto":
        is_resized = _is_image(target) and _size(target) == (height, width)
    return smaller, _select(target, rows, columns) if is_resized else target


def _check(p_row: float, p_col: float, resize_target: bool | str) -> None:
    for name, fraction in (("p_row", p_row), ("p_col", p_col)):
        if not 0 <= fraction <= 1:
            raise ValueError(f"{name}={fraction} must be a fraction, from 0 to 1")
    if resize_target not in (True, False, "auto"):
        raise ValueError(f"resize_target={resize_target!r} must be True, False or 'auto'")


def _is_image(value: Any) -> bool:
    return isinstance(value, Image.Image) or (isinstance(value, torch.Tensor) and value.ndim > 2)


def _size(image: ImageLike) -> tuple[int, int]:
    if isinstance(image, Image.Image):
        return image.height, image.width
    return image.shape[-2], image.shape[-1]


def _select(image: ImageLike, rows: torch.Tensor, columns: torch.Tensor) -> ImageLike:
    if isinstance(image, Image.Image):
        pixels = _select(image_as_type(image, torch.Tensor), rows, columns)
        return image_as_type(pixels, Image.Image)
    return image[..., rows.to(image.device)[:, None], columns.to(image.device)]


class ColOutTransform:
    """Applies `colout_batch`, as a transform of a dataset of images.

    Args:
        p_row: Fraction of the rows to leave out.
        p_col: Fraction of the columns.
        resize_target: Whether the target of a pair loses the same; with ``"auto"`` if it is an
            image of the same size.
    """

    def __init__(
        self, p_row: float = 0.15, p_col: float = 0.15, resize_target: bool | str = "auto"
    ) -> None:
        _check(p_row, p_col, resize_target)
        self.p_row = p_row
        self.p_col = p_col
        self.resize_target = resize_target

    def __call__(self, sample: Sample) -> Any:
        """Returns the smaller image; with its target if it was given."""
        return colout_batch(sample, self.p_row, self.p_col, self.resize_target)


class ColOut(DatasetTransform):
    """Leaves out random rows and columns of the images, so that each costs less.

    Args:
        p_row: Fraction of the rows to leave out.
        p_col: Fraction of the columns.
        batch: Acts on whole batches, the same way on all its images. Otherwise it adds a
            `ColOutTransform` to the dataset, which acts on each image.
        resize_target: Whether the target loses the same rows and columns; with ``"auto"`` if it is
            an image of the same size. Only for whole batches.
        input_key: Where in the batch the images are: a key, an index, or a (getter, setter) pair.
        target_key: The same for the target.

    Raises:
        ValueError: If a fraction or ``resize_target`` is none.
        NotImplementedError: If targets are to be resized image by image.
    """

    def __init__(
        self,
        p_row: float = 0.15,
        p_col: float = 0.15,
        batch: bool = True,
        resize_target: bool | str = "auto",
        input_key: Any = 0,
        target_key: Any = 1,
    ) -> None:
        super().__init__()
        _check(p_row, p_col, resize_target)
        if resize_target is True and not batch:
            raise NotImplementedError(
                "resize_target=True needs batch=True: a transform of the dataset's images never "
                "sees their targets"
            )
        self.p_row = p_row
        self.p_col = p_col
        self.batch = batch
        self.resize_target = resize_target
        self.input_key = input_key
        self.target_key = target_key

    def make_transform(self) -> Callable[[Any], Any]:
        """Returns the transform of one image."""
        return ColOutTransform(self.p_row, self.p_col, self.resize_target)

    def match(self, event: Event, state: State) -> bool:
        """Matches when a batch has been loaded; or at the start, to change the dataset."""
        return event == Event.AFTER_DATALOADER if self.batch else super().match(event, state)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the batch, or adds the transform to the dataset."""
        if not self.batch:
            return super().apply(event, state, logger)
        sample = (state.batch_get_item(self.input_key), state.batch_get_item(self.target_key))
        images, target = colout_batch(sample, self.p_row, self.p_col, self.resize_target)
        state.batch_set_item(self.input_key, images)
        if target is not sample[1]:
            state.batch_set_item(self.target_key, target)
        return None
