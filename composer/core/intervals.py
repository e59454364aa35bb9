"""From an interval such as ``100ba`` to the moments at which it is due."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from composer.core.duration import Time, ensure_time
from composer.core.event import Event
from composer.core.state import State
from composer.core.time_unit import TimeUnit
from composer.core.timestamp import Timestamp

IsDue = Callable[[State, Event], bool]

_CHECKPOINT_EVENTS = {
    TimeUnit.EPOCH: Event.EPOCH_CHECKPOINT,
    TimeUnit.ITERATION: Event.ITERATION_CHECKPOINT,
}
_END_EVENTS = {TimeUnit.EPOCH: Event.EPOCH_END, TimeUnit.ITERATION: Event.ITERATION_END}


def create_interval_scheduler(
    interval: str | int | Time[Any],
    include_end_of_training: bool = True,
    checkpoint_events: bool = True,
    final_events: set[Event] | None = None,
) -> IsDue:
    """Returns a function that says at each event whether the interval is due.

    It is due when a whole number of intervals has been crossed since the last batch or epoch: with
    batches of 6 samples, ``10sp`` is due after 12, 24 and 30. ``dur`` is a fraction of the training
    duration, whatever its unit. An interval of 0 is never due.

    Args:
        interval: How often; a plain number counts epochs.
        include_end_of_training: Whether it is due at the end of training too, once.
        checkpoint_events: Whether to answer at ``*_CHECKPOINT`` rather than ``*_END`` events.
        final_events: The events at which the end of training is looked for.

    Raises:
        ValueError: If the interval is negative, or not a number.
    """
    interval = ensure_time(interval, TimeUnit.EPOCH)
    if not 0 <= interval.value < math.inf:
        raise ValueError(f"The interval {interval} must be 0 (never) or positive")
    if final_events is None:
        final_events = {Event.BATCH_CHECKPOINT, Event.EPOCH_CHECKPOINT}
    if checkpoint_events:
        own_event = _CHECKPOINT_EVENTS.get(interval.unit, Event.BATCH_CHECKPOINT)
    else:
        own_event = _END_EVENTS.get(interval.unit, Event.BATCH_END)
    last_due: tuple[int, Event] | None = None

    def is_due(state: State, event: Event) -> bool:
        nonlocal last_due
        if interval.value == 0:
            return False
        batch = state.timestamp.batch.value
        # Once a batch, however many events it has; at one event for as many as ask.
        if last_due is not None and last_due[0] == batch and last_due[1] is not event:
            return False
        due = event is own_event and _crosses(state, interval)
        if not due and include_end_of_training and event in final_events:
            due = _is_over(state)
        if due:
            last_due = (batch, event)
        return due

    return is_due


def _is_over(state: State) -> bool:
    if state.previous_timestamp is None:
        return False
    elapsed = state.get_elapsed_duration()
    return elapsed is not None and elapsed >= 1.0


def _crosses(state: State, interval: Time[Any]) -> bool:
    """Tells whether the last batch, epoch or iteration completed an interval."""
    before = state.previous_timestamp
    if before is None:
        return False
    now = state.timestamp
    surplus = 0
    if interval.unit is TimeUnit.DURATION:
        interval, surplus = _fraction_of_duration(state, interval.value)
    step, unit = interval.value, interval.unit
    first, last = before.get(unit).value, counted(now, unit, f"interval {interval}")
    return (first - surplus) // step != (last - surplus) // step


def present_batches(state: State) -> int:
    """Returns the trained batches, in those of the present size, as what is in epochs counts."""
    return int(state.timestamp.batch) - state.surplus_batches


def counted(now: Timestamp, unit: TimeUnit, what: str) -> int:
    """Returns how much was trained in a unit that ``what`` waits for.

    Raises:
        ValueError: If it is tokens, and the batches trained so far had none, so it would never end.
    """
    value = now.get(unit).value
    if unit is TimeUnit.TOKEN and value == 0 and now.batch.value > 0:
        raise ValueError(
            f"The {what} is in tokens, and no tokens are found in the batches; give a DataSpec "
            "with get_num_tokens_in_batch, or another unit (ba, sp or ep)"
        )
    return value


def _fraction_of_duration(state: State, fraction: float) -> tuple[Time[int], int]:
    """Returns the interval in units of the duration, and what of the clock it does not count.

    Epochs are given as batches, to be finer than one epoch; these are of the present size.

    Rounded up, from the fraction as it is written: in binary 0.07 of 100 batches is a hair more
    than 7, which would make it 8.
    """
    duration = state.max_duration
    if duration is None:
        raise RuntimeError(
            f"An interval of {fraction}dur needs a max_duration, which is not set: give the "
            "Trainer a max_duration, or the interval in ba, sp or tok"
        )
    if duration.unit is TimeUnit.ITERATION:
        length = state._iteration_length
        if length is None:
            raise RuntimeError(
                f"An interval of {fraction}dur with a max_duration of {duration} needs the length "
                "of an iteration, which is not set; give the interval in another unit"
            )
        duration = Time(duration.value * length.value, length.unit)
    total, unit, surplus = duration.value, duration.unit, 0
    if unit is TimeUnit.EPOCH:
        if state.dataloader_len is None:
            raise RuntimeError(
                f"An interval of {fraction}dur with a max_duration of {duration} needs a "
                "dataloader with a length. Give the interval in ba, sp or tok, or the Trainer a "
                "train_subset_num_batches"
            )
        total, unit = total * state.dataloader_len.value, TimeUnit.BATCH
        surplus = state.surplus_batches
    return Time(max(1, math.ceil(Fraction(repr(fraction)) * total)), unit), surplus
