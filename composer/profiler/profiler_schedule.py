"""Which batches are profiled."""

from collections.abc import Callable

from composer.core.state import State
from composer.profiler.profiler_action import ProfilerAction


def cyclic_schedule(
    skip_first: int = 0, wait: int = 0, warmup: int = 1, active: int = 4, repeat: int = 1
) -> Callable[[State], ProfilerAction]:
    """Returns a schedule that, in each epoch, repeats a cycle of waiting, warming up and recording.

    A trace is saved at the end of each cycle, and at the last batch of an epoch. In an epoch that a
    checkpoint resumed midway, counting starts where the run was resumed.

    Args:
        skip_first: Batches before the first cycle of an epoch.
        wait: Batches of a cycle that are not profiled.
        warmup: Batches of a cycle that are profiled, but that torch's profiler throws away, because
            starting it distorts them.
        active: Batches of a cycle that are recorded.
        repeat: Cycles in an epoch; 0 repeats to its end.

    Raises:
        ValueError: If nothing is ever recorded, or a count is negative.
    """
    counts = {
        "skip_first": skip_first,
        "wait": wait,
        "warmup": warmup,
        "active": active,
        "repeat": repeat,
    }
    for name, count in counts.items():
        if count < (lowest := 1 if name == "active" else 0):
            raise ValueError(f"{name}={count} is not a number of batches: it must be >= {lowest}.")
    cycle = wait + warmup + active

    def schedule(state: State) -> ProfilerAction:
        batch = int(state.timestamp.batch_in_epoch)
        resumed_at = getattr(state.profiler, "resumption_batch_idx", 0)
        position = batch - skip_first - resumed_at
        if position < 0 or (repeat and position >= repeat * cycle):
            return ProfilerAction.SKIP
        position %= cycle
        if position < wait:
            return ProfilerAction.SKIP
        if position < wait + warmup:
            return ProfilerAction.WARMUP
        length = state.epoch_length
        if position + 1 == cycle or (length is not None and batch + 1 >= length):
            return ProfilerAction.ACTIVE_AND_SAVE
        return ProfilerAction.ACTIVE

    return schedule
