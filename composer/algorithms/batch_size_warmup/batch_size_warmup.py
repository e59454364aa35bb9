"""Batch-size warm-up: small optimizer steps first, as long as larger ones would not pay."""

from collections.abc import Mapping

from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time import Time
from composer.optim.schedule_time import convert_time, elapsed

LR_SCALINGS = {"sqrt": 0.5, "linear": 1.0, "none": 0.0}


class BatchSizeWarmup(Algorithm):
    """Divides loaded batches into several optimizer steps, at first many, then fewer, then one.

    The batch above which larger ones give nothing is small early in training and grows (arXiv
    2505.23971): smaller steps learn more from the same tokens there, and large batches can be used
    from early on. The loader keeps its batch size, that of the end. It is the steps that are
    smaller: each takes a share of the loaded batch and the rest goes into further steps. So the
    data and their order, token counts, schedules, intervals and checkpoints, which all fall on
    loaded batches, are those of a run without it, and a run resumes exactly without anything to
    remember. (To let a step take several loaded batches instead would keep half-summed gradients
    across checkpoints.)

    A step's loss is the mean over the targets of its share over all ranks. Its events, from
    `BEFORE_TRAIN_BATCH` to `AFTER_TRAIN_BATCH`, come once for each step; train metrics describe the
    last one. A batch that does not divide evenly is divided into fewer steps.

    | key | logged |
    | --- | --- |
    | ``batch_size_warmup/steps_in_batch`` | steps for each loaded batch |
    | ``batch_size_warmup/lr_factor`` | what learning rates are multiplied by |

    Args:
        schedule: From which time on a batch is for how many steps, in the order of time. By default
            4 steps, 2 from 10 % of training on, and 1 from 30 % on.
        lr_scaling: How the learning rate follows the size of a step: ``"sqrt"`` divides it by the
            root of the number of steps, as suits Adam, ``"linear"`` by the number, ``"none"``
            leaves it.

    Raises:
        ValueError: If the schedule never divides a batch, or an argument is unknown.
    """

    def __init__(self, schedule: Mapping[str, int] | None = None, lr_scaling: str = "sqrt") -> None:
        schedule = schedule or {"0dur": 4, "0.1dur": 2, "0.3dur": 1}
        if min(schedule.values()) < 1 or max(schedule.values()) == 1:
            raise ValueError(
                f"schedule={dict(schedule)!r} gives the number of steps for each batch from a time "
                "on; it must be at least 1, and more than that at some time."
            )
        if lr_scaling not in LR_SCALINGS:
            raise ValueError(f"lr_scaling={lr_scaling!r} is unknown; use {', '.join(LR_SCALINGS)}.")
        self.schedule = {Time.from_input(time): steps for time, steps in schedule.items()}
        self.lr_scaling = lr_scaling

    def steps_in_batch(self, state: State) -> int:
        """Returns how many steps the current batch is for."""
        steps = 1
        for time, from_then_on in self.schedule.items():
            if convert_time(time, state).value <= elapsed(state, time):
                steps = from_then_on
        return steps

    def lr_factor(self, steps: int) -> float:
        """Returns what learning rates are multiplied by while there are so many steps."""
        return steps ** -LR_SCALINGS[self.lr_scaling]

    def match(self, event: Event, state: State) -> bool:
        """Matches when a batch begins; the trainer asks it for the steps."""
        return event is Event.BATCH_START

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Logs the number of steps."""
        steps = self.steps_in_batch(state)
        logger.log_metrics(
            {
                "batch_size_warmup/steps_in_batch": steps,
                "batch_size_warmup/lr_factor": self.lr_factor(steps),
            }
        )
