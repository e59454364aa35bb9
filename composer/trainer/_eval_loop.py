"""Evaluation: one evaluator's pass over its data, those due inside training, and prediction."""

import itertools
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch

from composer.core.data_spec import DataSpec
from composer.core.engine import Engine
from composer.core.evaluator import Evaluator
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time import Timestamp
from composer.models.base import ComposerModel
from composer.trainer._clock import total_over_ranks
from composer.trainer._dataloading import (
    Number,
    epoch_seed,
    own_random_state,
    set_sampler_epoch,
)
from composer.trainer._in_step import (
    InStep,
    Pass,
    check_shared,
    copies_of_a_batch,
    seed_of_batches,
    share_batches,
)
from composer.trainer._memory import is_out_of_memory
from composer.trainer._metrics import compute_eval_metrics, metrics_on_device
from composer.trainer._microbatching import split_batch
from composer.utils import dist
from composer.utils.misc import model_eval_mode
from composer.utils.phases import phase

_NOTHING: Any = object()


def batches_in_step(state: State, loader: Any) -> Iterator[Any]:
    """Yields this rank's batches, then nothing-markers until every rank is through.

    Ranks may hold different numbers of batches: all go on until none has any.
    """
    limit = None if state.dataloader_len is None else int(state.dataloader_len)
    iterator = iter(loader)
    for index in itertools.count():
        is_over = limit is not None and index >= limit
        batch = _NOTHING if is_over else next(iterator, _NOTHING)
        if not _any_rank(state, batch is not _NOTHING):
            return
        if index == 0:
            check_shared(state, None if batch is _NOTHING else batch)
        yield batch


def _any_rank(state: State, mine: bool) -> bool:
    if dist.get_world_size() == 1:
        return mine
    flag = state.device.tensor_to_device(torch.tensor(int(mine)))
    dist.all_reduce(flag, "MAX")
    return bool(flag.item())


class EvalLoop:
    """Runs evaluators over their data, with the model in eval mode and without gradients.

    Args:
        module: the model without its wrappers; its ``eval_forward`` and ``update_metric`` are
            called.
        autocast: makes the precision context of a forward pass.
    """

    def __init__(
        self,
        state: State,
        engine: Engine,
        logger: Logger,
        *,
        module: ComposerModel,
        autocast: Callable[[], AbstractContextManager[Any]],
    ):
        self.state = state
        self.engine = engine
        self.logger = logger
        self.module = module
        self.autocast = autocast

    def run_due(self, event: Event) -> bool:
        """Runs the evaluators that are due at this event of training; tells whether any was."""
        due = [e for e in self.state.evaluators if e.eval_interval(self.state, event)]
        if not due:
            return False
        self.engine.run_event(Event.EVAL_BEFORE_ALL)
        for evaluator in due:
            self.run(evaluator, evaluator.subset_num_batches)
        self.engine.run_event(Event.EVAL_AFTER_ALL)
        return True

    @phase("evaluating")
    def run(self, evaluator: Evaluator, subset_num_batches: int | None) -> None:
        """Evaluates once and logs ``metrics/<label>/<name>``; training finds its batch again."""
        state = self.state
        held = state.dataloader, state.dataloader_label, state.dataloader_len, state.batch
        limit = -1 if subset_num_batches is None else subset_num_batches
        share_batches(state, evaluator.dataloader)  # first: it makes a rank's share longer
        state.set_dataloader(evaluator.dataloader.dataloader, evaluator.label, limit)
        state.eval_timestamp = Timestamp()
        try:
            with torch.no_grad(), model_eval_mode(state.model):
                self._evaluate(evaluator)
        finally:
            length = -1 if held[2] is None else held[2]
            state.set_dataloader(held[0], held[1], length)
            state.batch = held[3]

    def _evaluate(self, evaluator: Evaluator) -> None:
        state = self.state
        self.engine.run_event(Event.EVAL_START)
        metrics = metrics_on_device(state, state.eval_metrics.get(evaluator.label, {}))
        for metric in metrics.values():
            metric.reset()
        started, count, drawn = perf_counter(), 0, 0
        in_step, copies = InStep(state), copies_of_a_batch(state)
        own_samples = _own_samples_of_rank(evaluator.dataloader)
        for batch in self._batches(evaluator.dataloader.dataloader):
            samples = tokens = 0
            if batch is not _NOTHING:
                count += 1
                batch = evaluator.dataloader.batch_transforms(batch)
                samples = evaluator.dataloader.get_num_samples_in_batch(batch)
                tokens = evaluator.dataloader.get_num_tokens_in_batch(batch)
                drawn += samples
                repeats = min(samples, max(0, drawn - own_samples))
                state.batch = batch
                self.engine.run_event(Event.EVAL_BATCH_START)
                self._eval_batch(evaluator, metrics, repeats, in_step)
                samples -= repeats
            else:
                self._repeat(evaluator.dataloader, in_step)
            now = perf_counter()
            state.eval_timestamp = state.eval_timestamp.to_next_batch(
                *total_over_ranks(
                    state.device,
                    samples / copies,
                    tokens / copies,
                    timedelta(seconds=now - started),
                )
            )
            started = now
            if batch is not _NOTHING:
                self.engine.run_event(Event.EVAL_BATCH_END)
        if count == 0:
            warnings.warn(
                f"No batches were evaluated for global rank {dist.get_global_rank()}: the "
                f"dataloader of evaluator {evaluator.label!r} is empty, or smaller than a batch "
                "with drop_last=True."
            )
        compute_eval_metrics(state, self.logger, evaluator.label, metrics)
        self.engine.run_event(Event.EVAL_END)

    def _batches(self, loader: Any) -> Iterator[Any]:
        """Yields batches in an order of this evaluation's own."""
        state, batch = self.state, int(self.state.timestamp.batch)
        set_sampler_epoch(loader, batch)
        with own_random_state(epoch_seed(seed_of_batches(state), batch)):
            yield from batches_in_step(state, loader)

    def _repeat(self, data_spec: DataSpec, in_step: InStep) -> None:
        """Runs passes that count nothing, for ranks that still have a batch."""
        for each in in_step.passes(()):
            self._forward(data_spec, each.microbatch)

    def _eval_batch(
        self, evaluator: Evaluator, metrics: dict[str, Any], repeats: Number, in_step: InStep
    ) -> None:
        state, data_spec, whole = self.state, evaluator.dataloader, self.state.batch
        if repeats:  # a batch of nothing but repeated samples still runs, uncounted
            kept = data_spec.get_num_samples_in_batch(whole) - repeats
            metrics = metrics if kept > 0 else {}
            state.batch = data_spec.split_batch(whole, kept)[0] if kept > 0 else whole
        size = evaluator.device_eval_microbatch_size
        waiting = deque(in_step.passes(split_batch(data_spec, state.batch, size)))
        while waiting:
            microbatch, counts = waiting.popleft()
            try:
                self._forward(data_spec, microbatch)
            except Exception as error:
                if not (evaluator.auto_microbatching and is_out_of_memory(error)):
                    raise
                size = _halve(evaluator, data_spec.get_num_samples_in_batch(microbatch), error)
                parts = data_spec.split_batch(microbatch, size)
                waiting.extendleft(Pass(part, counts) for part in reversed(parts))
            else:
                self._update(metrics if counts else {})
        if evaluator.auto_microbatching:
            size = evaluator.device_eval_microbatch_size
            self.logger.log_metrics(
                {f"trainer/{evaluator.label}/device_eval_microbatch_size": size}
            )
        state.batch = whole

    def _forward(self, data_spec: DataSpec, microbatch: Any) -> None:
        state = self.state
        batch = state.device.batch_to_device(microbatch)
        state.batch = data_spec.microbatch_transforms(batch)
        self.engine.run_event(Event.EVAL_BEFORE_FORWARD)
        with self.autocast():
            state.outputs = self.module.eval_forward(state.batch)
        self.engine.run_event(Event.EVAL_AFTER_FORWARD)

    def _update(self, metrics: dict[str, Any]) -> None:
        state = self.state
        batch, outputs = state.batch, state.outputs
        if state.device.name == "mps":  # metrics of double precision live on the CPU
            batch, outputs = _to_cpu(batch), _to_cpu(outputs)
        with self.autocast():
            for metric in metrics.values():
                state.metric_outputs = self.module.update_metric(batch, outputs, metric) or {}


def _halve(evaluator: Evaluator, size: float, error: Exception) -> int:
    """Halves an evaluator's micro-batch, for good; what was counted before the error stays."""
    if size <= 1:
        raise RuntimeError(
            f"memory ran out while evaluating {evaluator.label!r} with a single sample a "
            "micro-batch; use shorter sequences or a smaller model."
        ) from error
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    evaluator.device_eval_microbatch_size = max(int(size) // 2, 1)
    return evaluator.device_eval_microbatch_size


def _own_samples_of_rank(data_spec: DataSpec) -> Number:
    """Returns after how many samples a rank's others are repetitions of what other ranks have.

    Where samples do not go round, some are repeated until all ranks hold equally many, the last
    ones of a rank. Counting them would weigh those samples twice. A data set that does so says how
    many come before them (``own_samples``, None for all); a DistributedSampler that drops nothing
    repeats at most one on a rank.
    """
    loader: Any = data_spec.dataloader
    own_samples = getattr(getattr(loader, "dataset", None), "own_samples", None)
    if own_samples is not None:
        return own_samples
    sampler = getattr(loader, "sampler", None)
    if not isinstance(sampler, torch.utils.data.DistributedSampler) or sampler.drop_last:
        return math.inf
    try:
        repeated = sampler.total_size - len(sampler.dataset)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        warnings.warn(
            "The evaluation data set has no length, so samples that the DistributedSampler repeats "
            "cannot be told apart and are counted twice."
        )
        return math.inf
    return sampler.num_samples - int(sampler.rank >= sampler.num_replicas - repeated)


def _to_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _to_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_to_cpu(item) for item in value)
    return value


class PredictLoop:
    """Runs the model over a loader, whole batches at a time, in eval mode and without gradients."""

    def __init__(
        self,
        state: State,
        engine: Engine,
        module: ComposerModel,
        autocast: Callable[[], AbstractContextManager[Any]],
    ):
        self.state = state
        self.engine = engine
        self.module = module  # without wrappers, whose forward passes would wait for other ranks
        self.autocast = autocast

    @phase("predicting")
    def run(self, data_spec: DataSpec, subset_num_batches: int, return_outputs: bool) -> list[Any]:
        """Returns the outputs of each batch on the CPU, or nothing if they are not to be kept."""
        state = self.state
        held = state.dataloader, state.dataloader_label, state.dataloader_len
        share_batches(state, data_spec)
        state.set_dataloader(data_spec.dataloader, "predict", subset_num_batches)
        state.predict_timestamp = Timestamp()
        try:
            with torch.no_grad(), model_eval_mode(state.model):
                return self._predict(data_spec, return_outputs)
        finally:
            state.set_dataloader(held[0], held[1], -1 if held[2] is None else held[2])

    def _predict(self, data_spec: DataSpec, return_outputs: bool) -> list[Any]:
        state, fire, kept = self.state, self.engine.run_event, []
        fire(Event.PREDICT_START)
        in_step, copies = InStep(state), copies_of_a_batch(state)
        started = perf_counter()
        for loaded in batches_in_step(state, data_spec.dataloader):
            samples = tokens = 0
            if loaded is not _NOTHING:
                batch = state.device.batch_to_device(data_spec.batch_transforms(loaded))
                state.batch = data_spec.microbatch_transforms(batch)
                samples = data_spec.get_num_samples_in_batch(state.batch)
                tokens = data_spec.get_num_tokens_in_batch(state.batch)
                fire(Event.PREDICT_BATCH_START)
                fire(Event.PREDICT_BEFORE_FORWARD)
                in_step.passes([state.batch])
                with self.autocast():
                    state.outputs = self.module(state.batch)
                fire(Event.PREDICT_AFTER_FORWARD)
                if return_outputs:
                    kept.append(_to_cpu(state.outputs))
            else:
                for each in in_step.passes(()):
                    self.module(each.microbatch)
            now = perf_counter()
            state.predict_timestamp = state.predict_timestamp.to_next_batch(
                *total_over_ranks(
                    state.device,
                    samples / copies,
                    tokens / copies,
                    timedelta(seconds=now - started),
                )
            )
            started = now
            if loaded is not _NOTHING:
                fire(Event.PREDICT_BATCH_END)
        fire(Event.PREDICT_END)
        return kept
