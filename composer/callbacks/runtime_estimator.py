"""How long the run will still take."""

import time
import warnings

from composer.callbacks._time_units import get_seconds_per_unit
from composer.core.callback import Callback
from composer.core.intervals import present_batches
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time_unit import TimeUnit


class RuntimeEstimator(Callback):
    """Logs an estimate of the remaining time, evaluations included, after every batch.

    | key | logged |
    | --- | --- |
    | ``time/remaining_estimate`` | in ``time_unit`` |
    | ``time/remaining_estimate_unit`` | the unit, once, as a hyperparameter |

    Args:
        skip_batches: How many batches of this process to leave out, because the first ones are
            slow.
        time_unit: ``"seconds"``, ``"minutes"``, ``"hours"`` or ``"days"``.
    """

    def __init__(self, skip_batches: int = 1, time_unit: str = "hours") -> None:
        self.time_unit = time_unit
        self.divider = get_seconds_per_unit(time_unit)
        self.batches_left_to_skip = skip_batches
        self.start_time: float | None = None
        self.start_dur: float | None = None
        self.train_dataloader_len: int | None = None
        self.total_eval_wct = 0.0
        self.eval_wct_per_label: dict[str, list[float]] = {}
        self.eval_frequency_per_label: dict[str, float] = {}
        self.last_elapsed_fraction: dict[str, float] = {}

    def init(self, state: State, logger: Logger) -> None:
        """Logs the unit of the estimate."""
        logger.log_hyperparameters({"time/remaining_estimate_unit": self.time_unit})

    def batch_start(self, state: State, logger: Logger) -> None:
        """Starts the clock at the first batch that counts."""
        if self.start_time is not None or self.batches_left_to_skip > 0:
            return
        if state.dataloader_len is not None:
            self.train_dataloader_len = state.dataloader_len.value
        self.start_dur = self._elapsed_fraction(state)
        if self.start_dur is None:
            warnings.warn(
                "RuntimeEstimator cannot estimate the remaining time: the run has no max_duration.",
                stacklevel=2,
            )
        self.start_time = time.time()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Logs the estimate."""
        if self.batches_left_to_skip > 0:
            self.batches_left_to_skip -= 1
            return
        elapsed = self._elapsed_fraction(state)
        if elapsed is None or self.start_time is None or self.start_dur is None:
            return
        if elapsed <= self.start_dur:
            return
        train_seconds = time.time() - self.start_time - self.total_eval_wct
        remaining = train_seconds / (elapsed - self.start_dur) * (1 - elapsed)
        remaining += self._remaining_eval_seconds(elapsed)
        logger.log_metrics({"time/remaining_estimate": remaining / self.divider})

    def eval_end(self, state: State, logger: Logger) -> None:
        """Learns how long the evaluator takes and how often it runs."""
        # An evaluation before the clock started is not between two training batches that count.
        if self.start_time is None or self.start_dur is None:
            return
        label = str(state.dataloader_label)
        seconds = state.eval_timestamp.total_wct.total_seconds()
        self.total_eval_wct += seconds
        self.eval_wct_per_label.setdefault(label, []).append(seconds)
        elapsed = self._elapsed_fraction(state)
        if elapsed is None:
            return
        since_last = elapsed - self.last_elapsed_fraction.get(label, 0.0)
        if since_last > 0:
            self.eval_frequency_per_label[label] = since_last
        self.last_elapsed_fraction[label] = elapsed

    def _elapsed_fraction(self, state: State) -> float | None:
        """How much of the run is done; in a run that counts epochs, batches count too."""
        max_duration = state.max_duration
        if max_duration is None:
            return None
        if max_duration.unit == TimeUnit.EPOCH and self.train_dataloader_len is not None:
            batches = max_duration.value * self.train_dataloader_len
            return min(1.0, present_batches(state) / batches)
        elapsed = state.get_elapsed_duration()
        return None if elapsed is None else float(elapsed.value)

    def _remaining_eval_seconds(self, elapsed: float) -> float:
        remaining = 0.0
        for label, seconds in self.eval_wct_per_label.items():
            frequency = self.eval_frequency_per_label.get(label)
            if frequency is None:
                continue
            # The first evaluation is slow, as the first batch is: out, once there is another.
            counted = seconds[1:] if len(seconds) > 1 else seconds
            since_last = elapsed - self.last_elapsed_fraction[label]
            num_calls = int((1 - elapsed + since_last) / frequency + 1e-6)
            remaining += num_calls * sum(counted) / len(counted)
        return remaining
