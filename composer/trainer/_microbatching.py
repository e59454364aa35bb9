"""How a batch is cut to fit into memory."""

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from composer.core.data_spec import DataSpec
from composer.core.state import State
from composer.trainer._losses import Losses
from composer.trainer._memory import OutOfMemoryOnSomeRank, allocation_retries
from composer.trainer._train_step import TrainStep

log = logging.getLogger(__name__)


@dataclass
class MemoryRecord:
    """What a run has learnt of its device's memory; the Trainer hands its fields on."""

    first_train_batch_complete: bool = False
    cumulative_alloc_retries: int = 0
    """How often CUDA's allocator has flushed its cache, the most of all ranks."""
    num_consecutive_thrashes: int = 0
    """In how many batches on end it had to."""
    num_consecutive_non_OOM_batches: int = 0
    """How many batches have fitted since memory ran out or a larger size was tried."""


class FixedSize:
    """Cuts every batch into micro-batches of ``state.device_train_microbatch_size`` samples."""

    def __init__(
        self,
        state: State,
        step: TrainStep,
        split: Callable[[Any, Any], Sequence[Any]],
        record: MemoryRecord,
    ):
        self.state = state
        self.step = step
        self.split = split
        self.record = record

    def run(self, batch: Any) -> Losses:
        """Trains one step on the batch and returns its losses."""
        losses = self.step.run(self.split(batch, self.state.device_train_microbatch_size))
        self.record.first_train_batch_complete = True
        return losses


class AutoSize(FixedSize):
    """Halves the micro-batch when memory runs out on any rank; doubles it when it may fit again.

    The step it needs agrees over all ranks before gradients meet (``attempt=AgreedAttempt``), so
    that no rank waits for one that ran out. After an error the batch is tried again from its start:
    no weight has changed. Growing is tried after ``patience`` good batches; each failed try doubles
    the patience.

    Args:
        largest: the size to begin with, and the largest to try.
        patience: how many batches must fit before a larger size is tried.
    """

    def __init__(
        self,
        state: State,
        step: TrainStep,
        split: Callable[[Any, Any], Sequence[Any]],
        record: MemoryRecord,
        *,
        largest: int,
        patience: int = 100,
    ):
        super().__init__(state, step, split, record)
        self.largest = largest
        self.patience = patience
        self._is_trial = False
        record.cumulative_alloc_retries = allocation_retries(state)

    def run(self, batch: Any) -> Losses:
        """Trains one step on the batch, at whatever size fits, and returns its losses."""
        self._maybe_grow()
        while True:
            try:
                losses = super().run(batch)
            except OutOfMemoryOnSomeRank as error:
                self._clear(batch)
                self._shrink(error)
            else:
                self.record.num_consecutive_non_OOM_batches += 1
                self._is_trial = False
                self._watch_allocator()
                return losses

    def _maybe_grow(self) -> None:
        size = int(self.state.device_train_microbatch_size or 1)
        if size < self.largest and self.record.num_consecutive_non_OOM_batches >= self.patience:
            self._is_trial, self.record.num_consecutive_non_OOM_batches = True, 0
            self.state.device_train_microbatch_size = min(2 * size, self.largest)

    def _shrink(self, error: Exception | None) -> None:
        halve_microbatch_size(self.state, error)
        if self._is_trial:
            self.patience *= 2
        self._is_trial, self.record.num_consecutive_non_OOM_batches = False, 0

    def _clear(self, batch: Any) -> None:
        """Frees what the failed try left, so that the next starts as the first did."""
        state = self.state
        state.batch, state.outputs, state.loss = batch, torch.Tensor(), torch.Tensor()
        for optimizer in state.optimizers:
            optimizer.zero_grad(set_to_none=True)
            if state.scaler is not None:  # it may hold this optimizer's gradients as unscaled
                state.scaler._per_optimizer_states.pop(id(optimizer), None)
        if state.device.name == "gpu":
            torch.cuda.empty_cache()

    def _watch_allocator(self) -> None:
        """Takes a smaller size for the next batch if the allocator had to flush in two in a row."""
        retries, record = allocation_retries(self.state), self.record
        grew = retries > record.cumulative_alloc_retries
        record.num_consecutive_thrashes = record.num_consecutive_thrashes + 1 if grew else 0
        record.cumulative_alloc_retries = retries
        size = int(self.state.device_train_microbatch_size or 1)
        if record.num_consecutive_thrashes >= 2 and size > 1:
            record.num_consecutive_thrashes = 0
            self._shrink(None)


def halve_microbatch_size(state: State, error: Exception | None = None) -> None:
    """Halves the run's micro-batch, with a warning.

    Raises:
        RuntimeError: if it is a single sample already.
    """
    size = int(state.device_train_microbatch_size or 1)
    if size == 1:
        raise RuntimeError(
            "memory ran out with a single sample a micro-batch, so no smaller one can be tried; "
            "use a smaller model or shorter sequences, activation checkpointing, or more devices."
        ) from error
    state.device_train_microbatch_size = size // 2
    warnings.warn(
        f"memory ran out with {size} samples a micro-batch: trying "
        f"{state.device_train_microbatch_size}.",
        category=RuntimeWarning,
    )


def split_batch(data_spec: DataSpec, batch: Any, size: Any) -> Sequence[Any]:
    """Cuts a batch; one that fits already is not cut, and warns if it is smaller than a part."""
    num_samples = data_spec.get_num_samples_in_batch(batch)
    if num_samples > size:
        return data_spec.split_batch(batch, size)
    if num_samples < size:
        warnings.warn(
            f"Cannot split tensor of length {num_samples} into batches of size {size}: it is taken "
            "whole. The last batch of an epoch is often smaller; drop_last=True leaves it out."
        )
    return [batch]


def parse_microbatch_size(size: Any, loader: Any, argument: str) -> int | float | None:
    """Checks a micro-batch size; None and "auto" begin at the loader's own batch size.

    Raises:
        ValueError: if the size is not a positive number, or is not given and the loader has no
            batch size.
    """
    if size is None or size == "auto":
        if loader is None:
            return None
        batch_size = getattr(loader, "batch_size", None)
        if batch_size is None:
            raise ValueError(
                f"{argument}={size!r} begins at the batch size, and the dataloader has no "
                f"`batch_size` to take it from; give {argument} as a number of samples."
            )
        return batch_size
    if isinstance(size, bool) or not isinstance(size, int | float) or size <= 0:
        raise ValueError(f"{argument}={size!r}; it must be a positive number of samples.")
    return size
