"""Label smoothing: a little probability for every class."""

from typing import Any

import torch

from composer.algorithms.utils.targets import as_probabilities
from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State


def smooth_labels(
    logits: torch.Tensor, target: torch.Tensor, smoothing: float = 0.1
) -> torch.Tensor:
    """Spreads a part of each target's probability over all classes (Szegedy et al., 2015).

    Targets that are ignored (negative indices, or rows of zeros) become rows of zeros.

    Args:
        logits: What the targets are for: the classes are on axis 1, or on the last axis if only
            that fits, as in the logits (batch, time, vocabulary) of a language model.
        target: Class indices, or class probabilities of the logits' shape.
        smoothing: The part that is spread.

    Returns:
        Class probabilities of the logits' shape.

    Raises:
        ValueError: If the shapes of logits and targets do not fit.
    """
    return as_probabilities(logits, target, smoothing)


class LabelSmoothing(Algorithm):
    """Spreads a part of each target's probability over all classes (Szegedy et al., 2015).

    The model's loss gets class probabilities, of the shape of the outputs, and must take them;
    where targets are ignored, it must be a mean over the others, as ``soft_cross_entropy`` is.
    Afterwards the batch has its own targets again.

    Args:
        smoothing: The part that is spread.
        target_key: Where in the batch the target is: a key, an index, or a (getter, setter) pair.

    Raises:
        ValueError: If the part is not from 0 to 1.
    """

    def __init__(self, smoothing: float = 0.1, target_key: Any = 1) -> None:
        if not 0 <= smoothing <= 1:
            raise ValueError(f"smoothing={smoothing} must be a part, from 0 to 1")
        self.smoothing = smoothing
        self.target_key = target_key
        self.original_labels: Any = None
        """The batch's own targets, while the loss is computed."""

    def match(self, event: Event, state: State) -> bool:
        """Matches before and after the loss."""
        return event in (Event.BEFORE_LOSS, Event.AFTER_LOSS)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Smooths the targets, or puts the batch's own back."""
        if event == Event.AFTER_LOSS:
            state.batch_set_item(self.target_key, self.original_labels)
            self.original_labels = None
            return None
        if not isinstance(state.outputs, torch.Tensor):
            raise TypeError(
                f"LabelSmoothing needs logits, and the model returns {type(state.outputs).__name__}"
                ". A model that computes its loss itself, as those of transformers do, never sees "
                "the smoothed targets; let forward return the logits, and loss take probabilities"
            )
        self.original_labels = state.batch_get_item(self.target_key)
        smoothed = smooth_labels(state.outputs, self.original_labels, self.smoothing)
        state.batch_set_item(self.target_key, smoothed)
        return None
