"""ScheduleFree: has the average that an optimizer keeps evaluated and saved."""

from typing import Any, ClassVar

from composer.algorithms.ema.evaluated_average import is_saved_now
from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.protocols import RunOrder
from composer.core.state import State

__all__ = ["ScheduleFree"]


class ScheduleFree(Algorithm):
    """Puts an optimizer's average into the model for evaluation, checkpoints and the end.

    The Trainer adds it by itself for an optimizer with ``evaluates_average``, such as
    :class:`composer.optim.ScheduleFreeAdamW`.
    """

    run_order: ClassVar[RunOrder] = "first"  # others are to see the weights that are trained

    def __init__(self) -> None:
        self._stays = False

    def match(self, event: Event, state: State) -> bool:
        """Matches where the weights change that are used."""
        used = (Event.BATCH_START, Event.EVAL_START, Event.EVAL_END, Event.FIT_END)
        return event in used or is_saved_now(event, state)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Has the optimizers change the weights."""
        if event is Event.EVAL_END and self._stays:
            return None
        optimizers: list[Any] = [o for o in state.optimizers if hasattr(o, "evaluates_average")]
        if event is Event.EVAL_START:  # after the end of training the average stays
            self._stays = not all(o.param_groups[0]["is_training"] for o in optimizers)
        for optimizer in optimizers:
            if event in (Event.BATCH_START, Event.EVAL_END):
                optimizer.train()
            else:
                optimizer.eval()
        return None
