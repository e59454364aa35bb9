"""Brings the times of a schedule into units in which the run's clock can be compared with them."""

import functools
import warnings

from composer.core.intervals import counted, present_batches
from composer.core.state import State
from composer.core.time import Time, TimeUnit


@functools.lru_cache(maxsize=1024)
def _parse(time: str | Time) -> Time:
    # Schedules are asked on every step; the text of their times never changes.
    return Time.from_input(time)


def convert_time(time: str | Time, state: State, ssr: float = 1.0) -> Time:
    """Turns a time of a schedule into the unit in which the run's clock can be compared with it.

    Epochs become batches. A share of the duration becomes the duration's unit (batches for epochs)
    and needs no scaling, because ``state.max_duration`` is scaled already.
    """
    time = _parse(time)
    if time.unit is TimeUnit.SECOND:
        raise ValueError(
            f"A schedule cannot be given in wall-clock time, but got {time}; use ba, ep, sp, tok "
            "or dur."
        )
    if time.unit is TimeUnit.DURATION:
        max_duration = state.max_duration
        if max_duration is None:
            raise ValueError(
                f"The schedule time {time} is a share of max_duration, which is not set; set "
                "max_duration."
            )
        if max_duration.unit is not TimeUnit.EPOCH:
            return Time(int(time.value * max_duration.value), max_duration.unit)
        batches_per_epoch = _batches_per_epoch(state, time)
        return Time(int(time.value * batches_per_epoch * max_duration.value), TimeUnit.BATCH)
    if time.unit is TimeUnit.EPOCH:
        time = Time(time.value * _batches_per_epoch(state, time), TimeUnit.BATCH)
    return Time(int(time.value * ssr), time.unit)


def _batches_per_epoch(state: State, time: Time) -> int:
    if state.dataloader_len is None:
        raise RuntimeError(
            f"The schedule time {time} is in epochs, or in a share of a duration in epochs, but "
            "the dataloader has no length; give the schedule in batches, samples or tokens, or set "
            "train_subset_num_batches."
        )
    return int(state.dataloader_len)


def elapsed(state: State, time: str | Time) -> float:
    """Returns what the run's clock shows in the unit that ``time`` of a schedule is converted to.

    For a time in epochs, and in a run of epochs, it shows batches of the present size, if that was
    changed on the way.
    """
    time = _parse(time)
    unit = time.unit
    if unit is TimeUnit.DURATION and state.max_duration is not None:
        unit = state.max_duration.unit
    if unit is TimeUnit.EPOCH or (unit is TimeUnit.BATCH and _counts_epochs(state)):
        return present_batches(state)
    return counted(state.timestamp, unit, "learning-rate schedule")


def fraction_done(state: State, time: str | Time, ssr: float = 1.0) -> float:
    """Returns the share of ``time`` that has passed, from 0 to 1 (1 if there is no time)."""
    length = convert_time(time, state, ssr).value
    return min(1.0, elapsed(state, time) / length) if length > 0 else 1.0


def _counts_epochs(state: State) -> bool:
    """Tells whether the duration of the run is in epochs."""
    return state.max_duration is not None and state.max_duration.unit is TimeUnit.EPOCH


def end_of_run(state: State) -> Time | None:
    """Returns the duration of the run, in batches if it is in epochs of a known length."""
    end = state.max_duration
    if end is not None and end.unit is TimeUnit.EPOCH and state.dataloader_len is not None:
        return Time(end.value * int(state.dataloader_len), TimeUnit.BATCH)
    return end


def check_reaches_end(t_max: Time, state: State) -> None:
    """Refuses a schedule that ends before the run, where the two can be compared."""
    end = end_of_run(state)
    if end is not None and end.unit is t_max.unit and t_max.value < end.value:
        raise ValueError(
            f"t_max {t_max} must be greater than or equal to max_duration {state.max_duration}. "
            "Otherwise, the LR schedule will not be defined for the entire training duration."
        )


def warn_of_long_warmup(t_warmup: Time, end: Time | None) -> None:
    """Warns if the warm-up is longer than the schedule or the run, where they can be compared."""
    if end is not None and t_warmup.unit is end.unit and t_warmup.value > end.value:
        warnings.warn(
            f"The warm-up t_warmup={t_warmup} is longer than the schedule, which ends at "
            f"t_max={end}: the learning rate will not reach its full value.",
            stacklevel=3,
        )
