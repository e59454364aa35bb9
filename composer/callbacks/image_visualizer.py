"""Shows what goes into a vision model, and the masks that come out."""

from typing import Any

import torch

from composer.callbacks._now_and_then import NowAndThen
from composer.core.duration import Time
from composer.core.logger import Logger
from composer.core.state import State

MODES = ("input", "segmentation")


class ImageVisualizer(NowAndThen):
    """Logs images of a training batch now and then, and of the first batch of each evaluation.

    They are called ``Images/Train`` and ``Images/Eval``.

    Args:
        interval: How often in training, in batches or epochs; a number counts batches.
        mode: ``"input"`` logs the inputs; ``"segmentation"`` lays over them the masks
            ``prediction`` and ``ground_truth``.
        num_images: How many images of a batch.
        channels_last: Whether the last axis of the images is the channels.
        input_key: Where the images are in a batch; see `composer.utils.batch_get`.
        target_key: Where the masks are.
    """

    def __init__(
        self,
        interval: int | str | Time[int] = "100ba",
        mode: str = "input",
        num_images: int = 8,
        channels_last: bool = False,
        input_key: Any = 0,
        target_key: Any = 1,
    ) -> None:
        if mode.lower() not in MODES:
            raise ValueError(f"mode={mode!r} is unknown; use one of {', '.join(MODES)}.")
        super().__init__(interval)
        self.mode = mode.lower()
        self.num_images = num_images
        self.channels_last = channels_last
        self.input_key = input_key
        self.target_key = target_key

    def before_forward(self, state: State, logger: Logger) -> None:
        """Logs inputs of training, if it is time to."""
        if self.mode == "input" and self.is_due(state):
            self._log_inputs(state, logger, "Images/Train")

    def eval_before_forward(self, state: State, logger: Logger) -> None:
        """Logs inputs of an evaluation's first batch."""
        if self.mode == "input" and state.eval_timestamp.batch.value == 0:
            self._log_inputs(state, logger, "Images/Eval")

    def before_loss(self, state: State, logger: Logger) -> None:
        """Logs masks of training, if it is time to."""
        if self.mode == "segmentation" and self.is_due(state):
            self._log_masks(state, logger, "Images/Train")

    def eval_after_forward(self, state: State, logger: Logger) -> None:
        """Logs masks of an evaluation's first batch."""
        if self.mode == "segmentation" and state.eval_timestamp.batch.value == 0:
            self._log_masks(state, logger, "Images/Eval")

    def _log_inputs(self, state: State, logger: Logger, name: str) -> None:
        images = state.batch_get_item(self.input_key)
        if not isinstance(images, torch.Tensor):
            raise ValueError(
                f"input_key={self.input_key!r} leads to {type(images).__name__} in the batch, and "
                "ImageVisualizer needs a tensor of images there."
            )
        is_image = images.ndim in (3, 4) and images.numel() > images.shape[0]
        if is_image:
            logger.log_images(
                images[: self.num_images], name=name, channels_last=self.channels_last
            )

    def _log_masks(self, state: State, logger: Logger, name: str) -> None:
        images = state.batch_get_item(self.input_key)[: self.num_images]
        outputs = state.outputs[: self.num_images]
        targets = state.batch_get_item(self.target_key)[: self.num_images]
        num_classes = outputs.shape[1]
        # Pixels that do not count have a negative target; they get a class of their own.
        truth = torch.where(targets < 0, num_classes, targets)
        logger.log_images(
            images,
            name=name,
            channels_last=self.channels_last,
            masks={"prediction": outputs.detach().argmax(dim=1), "ground_truth": truth},
            use_table=True,
        )
