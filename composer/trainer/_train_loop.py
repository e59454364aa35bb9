"""Training to the end of the duration: iterations, epochs, batches and what is between."""

import logging
import warnings
from collections.abc import Sequence

from torch.optim.lr_scheduler import LRScheduler

from composer.core.engine import Engine
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time import TimeUnit
from composer.trainer._clock import Clock
from composer.trainer._dataloading import BatchFeed, Counts
from composer.trainer._eval_loop import EvalLoop
from composer.trainer._losses import Losses
from composer.trainer._metrics import TrainMetrics
from composer.trainer._microbatching import FixedSize
from composer.trainer._several_steps import SeveralSteps
from composer.trainer._targets import Weigher
from composer.utils import dist

log = logging.getLogger(__name__)


class TrainLoop:
    """Drives training; it keeps time and fires every event outside the step itself.

    Args:
        schedule_unit: BATCH or EPOCH, how often the schedulers step.
    """

    def __init__(
        self,
        state: State,
        engine: Engine,
        logger: Logger,
        *,
        feed: BatchFeed,
        weigher: Weigher,
        sizer: FixedSize | SeveralSteps,
        evals: EvalLoop,
        metrics: TrainMetrics,
        schedule_unit: TimeUnit,
    ):
        self.state = state
        self.engine = engine
        self.logger = logger
        self.feed = feed
        self.weigher = weigher
        self.sizer = sizer
        self.evals = evals
        self.metrics = metrics
        self.schedule_unit = schedule_unit
        self.clock = Clock(state)
        self._skipped_batches = 0

    def run(self) -> None:
        """Trains until the duration is reached; FIT_START must have been fired."""
        state = self.state
        start = state.timestamp
        self._refuse_endless_iteration()
        state.model.train()
        self.clock.restart()
        while not self._is_done():
            self._run_epoch()
        if state.timestamp.batch == start.batch and int(start.batch_in_epoch) == 0:
            warnings.warn(
                f"No batches were trained for global rank {dist.get_global_rank()}: the dataloader "
                "is empty, or smaller than a batch with drop_last=True."
            )
        self._log_time()
        self.engine.run_event(Event.FIT_END)
        self.evals.run_due(Event.FIT_END)

    def end_pending_iteration(self) -> None:
        """Ends an iteration that was full, and not over, when the loaded checkpoint was saved."""
        units = (TimeUnit.EPOCH, TimeUnit.TOKEN)
        if not self._is_done() and any(map(self._iteration_ended, units)):
            self._end_iteration()

    def _is_done(self) -> bool:
        assert self.state.max_duration is not None
        return self.state.timestamp >= self.state.max_duration

    def _run_epoch(self) -> None:
        state, fire = self.state, self.engine.run_event
        timestamp = state.timestamp
        if int(timestamp.epoch_in_iteration) == 0 and int(timestamp.batch_in_epoch) == 0:
            fire(Event.ITERATION_START)
        if int(timestamp.batch_in_epoch) == 0:
            fire(Event.EPOCH_START)
            self.logger.log_metrics({"time/epoch": int(timestamp.epoch)})
        before = int(timestamp.batch)
        for batch, counts in self.feed.epoch():
            self._run_batch(batch, counts)
            if self._is_done():
                break
            if self._iteration_ended(TimeUnit.TOKEN):
                self._end_iteration()
                break
        if self.feed.exhausted and int(state.timestamp.batch) == before:
            self._refuse_endless_nothing()
        all_taken = state.epoch_length == int(state.timestamp.batch_in_epoch)
        if self.feed.exhausted or all_taken:
            self._end_epoch()

    def _refuse_endless_iteration(self) -> None:
        """Raises if the duration counts iterations and nothing says how long one is."""
        duration = self.state.max_duration
        assert duration is not None
        if duration.unit is TimeUnit.ITERATION and self.state._iteration_length is None:
            raise ValueError(
                f"max_duration={duration} counts iterations, and nothing says how long one is, so "
                "it would never be reached; give it in epochs (ep), batches (ba), samples (sp) or "
                "tokens (tok)"
            )

    def _refuse_endless_nothing(self) -> None:
        """Raises if epochs without a batch would follow each other for ever."""
        state = self.state
        assert state.max_duration is not None
        if int(state.timestamp.batch_in_epoch) or state.max_duration.unit is TimeUnit.EPOCH:
            return
        raise ValueError(
            "the training dataloader gave no batch in a whole epoch, so "
            f"max_duration={state.max_duration} would never be reached: it is empty, or its data "
            "set is smaller than a batch and drop_last is set. Give it more data, a smaller batch "
            "size, or drop_last=False."
        )

    def _refuse_uncounted_duration(self, counts: Counts) -> None:
        """Raises before the first step if the duration is in a unit that no batch adds to."""
        duration, timestamp = self.state.max_duration, self.state.timestamp
        assert duration is not None
        counted = {TimeUnit.SAMPLE: counts.samples, TimeUnit.TOKEN: counts.tokens}
        if counted.get(duration.unit, 1) == 0 and timestamp.get(duration.unit).value == 0:
            raise ValueError(
                f"max_duration={duration} would never be reached: the batches have none of that "
                "unit. Give a DataSpec whose get_num_tokens_in_batch or get_num_samples_in_batch "
                "counts them, or the duration in batches (ba) or epochs (ep)."
            )

    def _run_batch(self, batch: object, counts: Counts) -> None:
        """Trains on one batch and fires, in order, every event between two loader reads."""
        fire, state = self.engine.run_event, self.state
        self._refuse_uncounted_duration(counts)
        state.batch = batch
        self.weigher.loaded = counts
        fire(Event.AFTER_DATALOADER)
        fire(Event.BATCH_START)
        self._log_batch_time(counts)
        if counts.targets:
            losses = self.sizer.run(state.batch)
            elapsed = self.clock.batch_ended(losses)
            self.logger.log_metrics(state.total_loss_dict)
            self.logger.log_metrics(
                {"trainer/device_train_microbatch_size": state.device_train_microbatch_size}
            )
            self.metrics.compute_and_log()
        else:
            self._skip_batch()
            elapsed = self.clock.batch_ended(Losses())
        self._step_schedulers(TimeUnit.BATCH)
        state.advance_batch(counts.samples, counts.tokens, elapsed)
        fire(Event.BATCH_END)
        if self.evals.run_due(Event.BATCH_END):
            self.clock.restart()
        fire(Event.BATCH_CHECKPOINT)

    def _skip_batch(self) -> None:
        """Passes over a batch without a single target: a mean over nothing has no gradient."""
        self._skipped_batches += 1
        self.state.step_is_skipped = False  # of the batch before; the schedule goes on
        for optimizer in self.state.optimizers:  # or torch warns that its step was forgotten
            optimizer._opt_called = True  # type: ignore[attr-defined]
        if self._skipped_batches == 1:
            warnings.warn(
                f"batch {int(self.state.timestamp.batch)} has no target to train on (every label "
                "is -100): it is passed over without an optimizer step. Check truncation and "
                "prompt masking; the count of such batches is logged as "
                "trainer/batches_without_targets."
            )
        self.logger.log_metrics({"trainer/batches_without_targets": self._skipped_batches})

    def _end_epoch(self) -> None:
        state, fire = self.state, self.engine.run_event
        self._step_schedulers(TimeUnit.EPOCH)
        state.advance_epoch()
        fire(Event.EPOCH_END)
        if self.evals.run_due(Event.EPOCH_END):
            self.clock.restart()
        fire(Event.EPOCH_CHECKPOINT)
        if self._iteration_ended(TimeUnit.EPOCH):
            self._end_iteration()

    def _iteration_ended(self, unit: TimeUnit) -> bool:
        length = self.state._iteration_length
        if length is None or length.unit is not unit:
            return False
        timestamp = self.state.timestamp
        reached = (
            timestamp.epoch_in_iteration if unit is TimeUnit.EPOCH else timestamp.token_in_iteration
        )
        return reached >= length

    def _end_iteration(self) -> None:
        self.state.advance_iteration()
        self.engine.run_event(Event.ITERATION_END)
        self.engine.run_event(Event.ITERATION_CHECKPOINT)

    def _step_schedulers(self, unit: TimeUnit) -> None:
        is_skipped = unit is TimeUnit.BATCH and self.state.step_is_skipped
        if unit is self.schedule_unit and not is_skipped:
            schedulers: Sequence[LRScheduler] = self.state.schedulers
            for scheduler in schedulers:
                scheduler.step()

    def _log_batch_time(self, counts: Counts) -> None:
        timestamp = self.state.timestamp
        news = {
            "time/batch": int(timestamp.batch),
            "time/sample": int(timestamp.sample),
            "time/batch_in_epoch": int(timestamp.batch_in_epoch),
            "time/sample_in_epoch": int(timestamp.sample_in_epoch),
        }
        if counts.rank_tokens > 0:
            news["time/token"] = int(timestamp.token)
            news["time/token_in_epoch"] = int(timestamp.token_in_epoch)
        self.logger.log_metrics(news)

    def _log_time(self) -> None:
        """Logs where training ended: the counters logged with each batch are those before it."""
        timestamp = self.state.timestamp
        news = {
            "time/epoch": int(timestamp.epoch),
            "time/batch": int(timestamp.batch),
            "time/sample": int(timestamp.sample),
            "time/batch_in_epoch": int(timestamp.batch_in_epoch),
            "time/sample_in_epoch": int(timestamp.sample_in_epoch),
        }
        if int(timestamp.token) > 0:
            news["time/token"] = int(timestamp.token)
            news["time/token_in_epoch"] = int(timestamp.token_in_epoch)
        self.logger.log_metrics(news)
