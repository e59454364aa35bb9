"""Learning-rate schedulers of a run: compiled against its live state, stepped at their own pace."""

from collections.abc import Sequence
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from composer.core.state import State
from composer.core.time import Time, TimeUnit
from composer.optim.torch_schedulers import (
    compile_composer_schedulers,
    scale_pytorch_scheduler,
)
from composer.utils.iter_helpers import ensure_tuple


def step_unit(schedulers: Sequence[Any], every_batch: bool | None) -> TimeUnit:
    """Returns how often schedulers step: by default torch's every epoch, ours every batch."""
    if every_batch is None:
        every_batch = not any(isinstance(s, LRScheduler) for s in schedulers)
    return TimeUnit.BATCH if every_batch else TimeUnit.EPOCH


def scaled_duration(duration: Time, ratio: float) -> Time:
    """Returns the duration times the schedule ratio, in whole units.

    Raises:
        ValueError: if nothing is left of it.
    """
    if ratio == 1.0:
        return duration
    scaled = Time(int(duration.value * ratio), duration.unit)
    if scaled.value == 0:
        raise ValueError(
            f"scale_schedule_ratio={ratio} leaves nothing of max_duration={duration}; use a larger "
            "one."
        )
    return scaled


def compile_schedulers(schedulers: Any, state: State, ratio: float) -> list[LRScheduler]:
    """Returns torch schedulers: one of all of ours together, torch's own scaled in place.

    Raises:
        ValueError: if a schedule does not fit the run (its warm-up, its end, its units).
    """
    given = ensure_tuple(schedulers)
    compiled = [scheduler for scheduler in given if isinstance(scheduler, LRScheduler)]
    for scheduler in compiled:
        scale_pytorch_scheduler(scheduler, ratio)
    ours = [scheduler for scheduler in given if not isinstance(scheduler, LRScheduler)]
    if ours:
        compiled.insert(given.index(ours[0]), compile_composer_schedulers(ours, state, ratio))
    return compiled
