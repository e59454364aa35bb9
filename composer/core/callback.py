"""The interface of what watches training."""

from __future__ import annotations

from abc import ABC
from typing import Any

from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.serializable import Serializable
from composer.core.state import State


class Callback(Serializable, ABC):
    """Watches training: override the methods of the events that it wants to hear.

    Each method is named after the value of its `Event` and gets the state and the logger. A method
    that is not overridden costs nothing. Arguments of the constructor are ignored here, for
    subclasses that pass theirs on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    def run_event(self, event: Event, state: State, logger: Logger) -> None:
        """Calls the method of the event; override it to hear of all events."""
        getattr(self, event.value)(state, logger)

    def init(self, state: State, logger: Logger) -> None:
        """Called when the trainer has been put together."""

    def before_load(self, state: State, logger: Logger) -> None:
        """Called before a checkpoint is loaded."""

    def after_load(self, state: State, logger: Logger) -> None:
        """Called after a checkpoint was loaded, or would have been."""

    def fit_start(self, state: State, logger: Logger) -> None:
        """Called when training starts."""

    def iteration_start(self, state: State, logger: Logger) -> None:
        """Called when an iteration starts."""

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Called when an epoch starts."""

    def before_dataloader(self, state: State, logger: Logger) -> None:
        """Called before the next batch is read."""

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Called when the next batch has been read."""

    def batch_start(self, state: State, logger: Logger) -> None:
        """Called when a batch starts."""

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Called before the optimizer step of a batch."""

    def before_forward(self, state: State, logger: Logger) -> None:
        """Called before the forward pass of a micro-batch."""

    def after_forward(self, state: State, logger: Logger) -> None:
        """Called after the forward pass of a micro-batch."""

    def before_loss(self, state: State, logger: Logger) -> None:
        """Called before the loss of a micro-batch."""

    def after_loss(self, state: State, logger: Logger) -> None:
        """Called after the loss of a micro-batch."""

    def before_backward(self, state: State, logger: Logger) -> None:
        """Called before the backward pass of a micro-batch."""

    def after_backward(self, state: State, logger: Logger) -> None:
        """Called after the backward pass of a micro-batch."""

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Called when all gradients of a batch are there."""

    def batch_end(self, state: State, logger: Logger) -> None:
        """Called when a batch has ended and is counted."""

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Called after BATCH_END and evaluation: the moment to save."""

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Called when an epoch has ended and is counted."""

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Called after EPOCH_END and evaluation: the moment to save."""

    def iteration_end(self, state: State, logger: Logger) -> None:
        """Called when an iteration has ended and is counted."""

    def iteration_checkpoint(self, state: State, logger: Logger) -> None:
        """Called after ITERATION_END: the moment to save."""

    def fit_end(self, state: State, logger: Logger) -> None:
        """Called when training has ended."""

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """Called before all evaluators."""

    def eval_start(self, state: State, logger: Logger) -> None:
        """Called when an evaluator starts."""

    def eval_batch_start(self, state: State, logger: Logger) -> None:
        """Called when a batch of evaluation starts."""

    def eval_before_forward(self, state: State, logger: Logger) -> None:
        """Called before a forward pass of evaluation."""

    def eval_after_forward(self, state: State, logger: Logger) -> None:
        """Called after a forward pass of evaluation."""

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Called when a batch of evaluation has ended."""

    def eval_end(self, state: State, logger: Logger) -> None:
        """Called when an evaluator has ended."""

    def eval_after_all(self, state: State, logger: Logger) -> None:
        """Called after all evaluators."""

    def eval_standalone_start(self, state: State, logger: Logger) -> None:
        """Called when Trainer.eval starts."""

    def eval_standalone_end(self, state: State, logger: Logger) -> None:
        """Called when Trainer.eval has ended."""

    def predict_start(self, state: State, logger: Logger) -> None:
        """Called when prediction starts."""

    def predict_batch_start(self, state: State, logger: Logger) -> None:
        """Called when a batch of prediction starts."""

    def predict_before_forward(self, state: State, logger: Logger) -> None:
        """Called before a forward pass of prediction."""

    def predict_after_forward(self, state: State, logger: Logger) -> None:
        """Called after a forward pass of prediction."""

    def predict_batch_end(self, state: State, logger: Logger) -> None:
        """Called when a batch of prediction has ended."""

    def predict_end(self, state: State, logger: Logger) -> None:
        """Called when prediction has ended."""

    def close(self, state: State, logger: Logger) -> None:
        """Called once when the run is closed, even after an error; others may still be used."""

    def post_close(self) -> None:
        """Called after everybody was closed without an error: the place to free resources."""
