"""Progressive resizing: begins training with smaller images."""

from typing import Any

import torch
import torch.nn.functional as F

from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State


def resize_batch(
    input: torch.Tensor,
    target: torch.Tensor,
    scale_factor: float,
    mode: str = "resize",
    resize_targets: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Makes images smaller by a factor (Howard, 2018).

    Args:
        input: Images, (N, C, H, W).
        target: The targets; images (N, H, W) or (N, C, H, W) if they are to be resized.
        scale_factor: New height over old; from 1 on nothing is changed.
        mode: ``"resize"`` takes the nearest pixels, ``"crop"`` a random part, the same of all
            images and targets.
        resize_targets: Whether the targets are images too, to be treated alike.

    Returns:
        The images and the targets.

    Raises:
        ValueError: For an unknown mode.
    """
    _check_mode(mode)
    if scale_factor >= 1:
        return input, target
    if mode == "resize":
        resized = _nearest(input, scale_factor)
        return resized, _nearest(target, scale_factor) if resize_targets else target
    window = tuple(_random_slice(size, scale_factor) for size in input.shape[2:])
    return input[(..., *window)], target[(..., *window)] if resize_targets else target


def _check_mode(mode: str) -> None:
    if mode not in ("crop", "resize"):
        raise ValueError(f"mode={mode!r} is unknown; use 'crop' or 'resize'")


def _nearest(images: torch.Tensor, scale_factor: float) -> torch.Tensor:
    # Class indices come without an axis of channels, and as integers, which torch does not resize.
    has_channels = images.ndim == 4
    pixels = images if has_channels else images.unsqueeze(1)
    pixels = pixels if images.is_floating_point() else pixels.double()
    resized = F.interpolate(
        pixels, scale_factor=scale_factor, mode="nearest", recompute_scale_factor=False
    )
    return (resized if has_channels else resized.squeeze(1)).to(images.dtype)


def _random_slice(size: int, scale_factor: float) -> slice:
    length = int(size * scale_factor)
    start = int(torch.randint(0, size - length, (1,)))
    return slice(start, start + length)


class ProgressiveResizing(Algorithm):
    """Trains on small images first, which are cheap, and on whole ones in the end.

    As in fastai (Howard, 2018). The size grows linearly with training.

    Args:
        mode: ``"resize"`` takes the nearest pixels, ``"crop"`` a random part.
        initial_scale: Size at the beginning, as a fraction of the images'.
        finetune_fraction: Part of training, at its end, with whole images.
        delay_fraction: Part of training, at its beginning, with images of the initial size.
        size_increment: Widths are multiples of this.
        resize_targets: Whether the targets are images too, to be treated alike.
        input_key: Where in the batch the images are: a key, an index, or a (getter, setter) pair.
        target_key: The same for the target.

    Raises:
        ValueError: If a setting is out of range.

    It logs:

    +---------------------------------------+-------------------------+
    | ``progressive_resizing/height``       | Height of the images.   |
    +---------------------------------------+-------------------------+
    | ``progressive_resizing/width``        | Their width.            |
    +---------------------------------------+-------------------------+
    | ``progressive_resizing/scale_factor`` | New width over old.     |
    +---------------------------------------+-------------------------+
    """

    def __init__(
        self,
        mode: str = "resize",
        initial_scale: float = 0.5,
        finetune_fraction: float = 0.2,
        delay_fraction: float = 0.5,
        size_increment: int = 4,
        resize_targets: bool = False,
        input_key: Any = 0,
        target_key: Any = 1,
    ) -> None:
        _check_mode(mode)
        for name, fraction in (
            ("initial_scale", initial_scale),
            ("finetune_fraction", finetune_fraction),
            ("delay_fraction", delay_fraction),
        ):
            if not 0 <= fraction <= 1:
                raise ValueError(f"{name}={fraction} must be a fraction, from 0 to 1")
        if delay_fraction + finetune_fraction > 1:
            raise ValueError(
                f"delay_fraction={delay_fraction} and finetune_fraction={finetune_fraction} are "
                "parts of one training: together they must be at most 1"
            )
        self.mode = mode
        self.initial_scale = initial_scale
        self.finetune_fraction = finetune_fraction
        self.delay_fraction = delay_fraction
        self.size_increment = size_increment
        self.resize_targets = resize_targets
        self.input_key = input_key
        self.target_key = target_key

    def match(self, event: Event, state: State) -> bool:
        """Matches when a batch has been loaded."""
        return event == Event.AFTER_DATALOADER

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> int | None:
        """Resizes the images of the batch."""
        images = state.batch_get_item(self.input_key)
        target = state.batch_get_item(self.target_key)
        if not isinstance(images, torch.Tensor) or images.ndim != 4:
            raise ValueError(
                "ProgressiveResizing takes a tensor of images (N, C, H, W), not "
                f"{tuple(images.shape) if isinstance(images, torch.Tensor) else type(images)}; "
                "point input_key at one"
            )
        elapsed = state.get_elapsed_duration()
        assert elapsed is not None, "training has a duration"
        scale = self._scale(float(elapsed), images.shape[3])
        images, new_target = resize_batch(images, target, scale, self.mode, self.resize_targets)
        state.batch_set_item(self.input_key, images)
        if self.resize_targets:
            state.batch_set_item(self.target_key, new_target)
        if logger is not None:
            logger.log_metrics(
                {
                    "progressive_resizing/height": images.shape[2],
                    "progressive_resizing/width": images.shape[3],
                    "progressive_resizing/scale_factor": scale,
                }
            )
        return None

    def _scale(self, elapsed: float, width: int) -> float:
        """Returns the factor that makes the width a multiple of ``size_increment``."""
        growing = 1 - self.finetune_fraction - self.delay_fraction
        past = elapsed - self.delay_fraction
        grown = 0.0 if past < 0 else min(past / growing, 1.0) if growing > 0 else 1.0
        scale = self.initial_scale + (1 - self.initial_scale) * grown
        pinned = round(width * scale / self.size_increment) * self.size_increment
        # A hair more: 31 / 39 * 39 is below 31, and would be rounded down to 30 pixels.
        return max(pinned, self.size_increment) / width * (1 + 1e-12)
