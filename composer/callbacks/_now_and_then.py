"""What callbacks that look every so many batches or epochs have in common."""

from composer.core.callback import Callback
from composer.core.duration import Time
from composer.core.state import State
from composer.core.time_unit import TimeUnit


class NowAndThen(Callback):
    """Acts in the first micro-batch of every so many batches or epochs.

    Args:
        interval: How often, in batches or epochs; a number counts batches.
    """

    def __init__(self, interval: int | str | Time[int]) -> None:
        self.interval = Time.from_input(interval, TimeUnit.BATCH)
        if self.interval.unit not in (TimeUnit.EPOCH, TimeUnit.BATCH) or self.interval.value < 1:
            raise ValueError(
                f"interval={interval!r} must be in batches or epochs, as '25ba' or '1ep'."
            )
        self.last_train_time_value_logged = -1

    def is_due(self, state: State) -> bool:
        """Says so once for each value of the counter, at the batch's first micro-batch."""
        now = state.timestamp.get(self.interval.unit).value
        if now % self.interval.value != 0 or now == self.last_train_time_value_logged:
            return False
        self.last_train_time_value_logged = now
        return True
