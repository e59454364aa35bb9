"""When an average of the weights is updated, and when it stands in the model's place."""

from abc import abstractmethod
from typing import Any, ClassVar

import torch

from composer.algorithms.ema.averaged_weights import EMAParameters
from composer.core.algorithm import Algorithm
from composer.core.duration import Time
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.protocols import RunOrder, SavesCheckpoints
from composer.core.state import State
from composer.core.time_unit import TimeUnit

__all__ = ["EvaluatedAverage", "is_saved_now"]

_UPDATE_EVENTS = {TimeUnit.BATCH: Event.BATCH_END, TimeUnit.EPOCH: Event.EPOCH_END}
SAVING_EVENTS = (
    Event.BATCH_CHECKPOINT,
    Event.EPOCH_CHECKPOINT,
    Event.ITERATION_CHECKPOINT,
    Event.EVAL_AFTER_ALL,
)


def is_saved_now(event: Event, state: State) -> bool:
    """Tells whether a callback of the run saves a checkpoint at this event."""
    return event in SAVING_EVENTS and any(
        isinstance(callback, SavesCheckpoints) and callback.save_interval(state, event)
        for callback in state.callbacks
    )


class EvaluatedAverage(Algorithm):
    """Trains one set of weights, and evaluates and saves another that follows it.

    Args:
        update_interval: How often it follows, in batches or epochs.
        start: From when on, in any unit.

    Raises:
        ValueError: If the interval is in another unit, or nothing.
    """

    run_order: ClassVar[RunOrder] = "first"  # others are to see the weights that are trained

    def __init__(self, update_interval: str | Time[Any], start: str | Time[Any]) -> None:
        self.update_interval = Time.from_input(update_interval)
        self.ema_start = Time.from_input(start)
        if self.update_interval.unit not in _UPDATE_EVENTS or self.update_interval.value < 1:
            raise ValueError(
                f"Invalid time unit or number in {self.update_interval}: averages are updated each "
                "so many batches or epochs; give for instance '1ba' or '1ep'."
            )
        self.update_event = _UPDATE_EVENTS[self.update_interval.unit]
        self.ema_model: EMAParameters | None = None
        """The set that is not in the model: the average, or while that is active, the trained."""
        self.ema_weights_active = False
        self.ema_started = False

    @abstractmethod
    def update(self, model: torch.nn.Module) -> None:
        """Lets the average follow the model."""

    def match(self, event: Event, state: State) -> bool:
        """Matches at each update, and where evaluated or saved weights change places."""
        if event is self.update_event and not self.ema_started:
            return self._should_start(state)
        if event in (Event.FIT_START, Event.PREDICT_START):
            return self.ema_model is not None
        if event in (Event.BATCH_START, Event.EPOCH_END, Event.EVAL_END):
            is_update = event is self.update_event and self._is_due(state)
            return self.ema_weights_active or is_update
        if event is Event.EVAL_START:
            return self.ema_started and not self.ema_weights_active
        if event is self.update_event:
            return self._is_due(state)
        return self.ema_started and not self.ema_weights_active and is_saved_now(event, state)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Starts, updates, or changes places."""
        if event in (Event.FIT_START, Event.PREDICT_START):
            assert self.ema_model is not None
            self.ema_model.move_params_to_device(state.model)
            return None
        self._show(state.model, event is Event.EVAL_START or event in SAVING_EVENTS)
        if event is self.update_event:
            if not self.ema_started:
                self.ema_model = EMAParameters(state.model)
                self.ema_started = True
            if self._is_due(state):
                self.update(state.model)
        return None

    def _show(self, model: torch.nn.Module, average: bool) -> None:
        """Puts the average into the model, or the trained weights, if they are not there."""
        if average != self.ema_weights_active:
            assert self.ema_model is not None
            self.ema_model.swap_params(model)
            self.ema_weights_active = average

    def _is_due(self, state: State) -> bool:
        now = state.timestamp.get(self.update_interval.unit).value
        return now % self.update_interval.value == 0

    def _should_start(self, state: State) -> bool:
        if self.ema_start.unit is TimeUnit.DURATION:
            elapsed = state.get_elapsed_duration()
            return elapsed is not None and elapsed >= self.ema_start
        return state.timestamp.get(self.ema_start.unit) >= self.ema_start
