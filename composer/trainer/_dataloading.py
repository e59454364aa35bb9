"""Batches out of a loader, in step on all ranks: resumed, counted, and ended together."""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from composer.core._state_dict import put_dataset
from composer.core.data_spec import DataSpec
from composer.core.engine import Engine
from composer.core.event import Event
from composer.core.state import State
from composer.trainer._in_step import check_shared, copies_of_a_batch, seed_of_batches
from composer.utils import dist

Number = int | float


class Counts(NamedTuple):
    """What a batch holds over all ranks, as loaded (before any algorithm changes it)."""

    samples: int
    tokens: int
    targets: Number
    rank_tokens: int
    """Tokens of this rank alone."""
    rank_targets: Number
    """Targets of this rank alone."""


@contextmanager
def own_random_state(seed: int) -> Iterator[None]:
    """Runs a block on random generators seeded for it alone; the run's own generators do not move.

    Creating a loader's iterator draws from the global generators: the shuffling of an epoch would
    depend on every number drawn before it, and a resumed run could not repeat it. Seeded by (run,
    epoch), the order of an epoch is the same whenever it is asked for.
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # the CPU's only: loaders draw from no other
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def epoch_seed(run_seed: int, epoch: int) -> int:
    """Mixes the run's seed and an epoch into the seed of that epoch's order."""
    return int(np.random.SeedSequence([run_seed % 2**32, epoch]).generate_state(1)[0])


def set_sampler_epoch(dataloader: Any, epoch: int) -> None:
    """Tells a distributed sampler which epoch it shuffles for."""
    for name in ("sampler", "batch_sampler"):
        sampler = getattr(dataloader, name, None)
        if isinstance(sampler, torch.utils.data.DistributedSampler):
            sampler.set_epoch(epoch)


def has_own_generator(dataloader: Any) -> bool:
    """Tells whether a loader draws from a user's generator, which is in no checkpoint."""
    sampler = getattr(dataloader, "sampler", None)
    return (
        getattr(dataloader, "generator", None) is not None
        or getattr(sampler, "generator", None) is not None
    )


def advance_own_generator(dataloader: Any, epochs: int, run_seed: int) -> None:
    """Moves a user's generator over epochs that are done, by drawing a batch of each."""
    for epoch in range(epochs):
        set_sampler_epoch(dataloader, epoch)
        with own_random_state(epoch_seed(run_seed, epoch)):
            for _ in dataloader:
                break


def batches_left(dataloader: Any) -> int | None:
    """Returns how many batches a loader has left in the epoch in which its data set was resumed.

    None if the data set does not tell by its ``samples_left`` that it goes on right after the
    samples that were taken, whatever batches are made of the others.
    """
    samples = getattr(getattr(dataloader, "dataset", None), "samples_left", None)
    size = getattr(dataloader, "batch_size", None)
    if samples is None or size is None:
        return None
    return samples // size if dataloader.drop_last else -(-samples // size)


class BatchFeed:
    """Yields the batches of the current epoch from where the timestamp stands.

    Args:
        count_targets: counts what the loss of a batch is a mean over.
        after_skip: called once the batches of a resumed epoch that are done have been passed over,
            with the samples that they held, or None if the data set passed over them itself, and
            does not say how many samples that were.
    """

    def __init__(
        self,
        state: State,
        engine: Engine,
        data_spec: DataSpec,
        count_targets: Callable[[Any], Number],
        after_skip: Callable[[int | None], None],
    ):
        self.state = state
        self.engine = engine
        self.data_spec = data_spec
        self.count_targets = count_targets
        self.counts_samples_as_targets = count_targets == data_spec.get_num_samples_in_batch
        self.world_size = dist.get_world_size()
        self.copies = copies_of_a_batch(state)
        self.after_skip = after_skip
        self.exhausted = False
        """True once a rank's loader had no further batch in this epoch."""

    def epoch(self) -> Iterator[tuple[Any, Counts]]:
        """Yields each batch left in the epoch with its counts; BEFORE_DATALOADER precedes each."""
        self.exhausted = False
        state = self.state
        loader: Any = state.train_dataloader
        length = state.dataloader_len
        state.epoch_length = None if length is None else int(length)
        done = int(state.timestamp.batch_in_epoch)
        stands = state.start_of_train_dataset()
        if done and (stands or put_dataset(loader, state.timestamp)):
            left = batches_left(loader)
            if left is not None and state.epoch_length == len(loader):
                state.epoch_length = done + left
            self.after_skip(None if left is None else int(state.timestamp.sample_in_epoch))
            yield from self._draws(first=done)
            return
        drawn = samples = 0
        for batch, counts in self._draws(first=0):
            drawn += 1
            if drawn > done:
                yield batch, counts
                continue
            samples += counts.samples
            if drawn == done:
                self.after_skip(samples)
        if drawn < done:
            self.after_skip(samples)

    def _draws(self, first: int) -> Iterator[tuple[Any, Counts]]:
        state, loader = self.state, self.state.train_dataloader
        assert loader is not None
        epoch = int(state.timestamp.epoch)
        set_sampler_epoch(loader, epoch)
        seed = epoch_seed(seed_of_batches(state), epoch)
        limit = state.epoch_length
        with own_random_state(seed):
            iterator = iter(loader)
        for index in itertools.count(first):
            self.engine.run_event(Event.BEFORE_DATALOADER)
            batch = _NOTHING
            if index == first:
                # A lazy sampler shuffles at the first draw. A dataset that was resumed at the very
                # end of its epoch only then begins, and so ends, that epoch.
                with own_random_state(seed):
                    batch = next(iterator, _NOTHING)
            elif limit is None or index < limit:
                batch = next(iterator, _NOTHING)
            if limit is not None and index >= limit:
                batch = _NOTHING
            if batch is not _NOTHING:
                batch = self.data_spec.batch_transforms(batch)
            if index == first:
                check_shared(state, None if batch is _NOTHING else batch)
            counts = self._count_over_ranks(batch)
            if counts is None:
                self.engine.run_marker_only_event(Event.AFTER_DATALOADER)
                self.exhausted = True
                return
            yield batch, counts

    def _count_over_ranks(self, batch: Any) -> Counts | None:
        """Sums the counts over ranks in one all-reduce; None, on all alike, if one has no batch."""
        samples: Number = 0
        tokens: Number = 0
        targets: Number = 0
        has_batch = batch is not _NOTHING
        if has_batch:
            samples = self.data_spec.get_num_samples_in_batch(batch)
            tokens = self.data_spec.get_num_tokens_in_batch(batch)
            targets = samples if self.counts_samples_as_targets else self.count_targets(batch)
        if self.world_size == 1:
            all_tokens = whole_count(tokens)
            return (
                Counts(whole_count(samples), all_tokens, targets, all_tokens, targets)
                if has_batch
                else None
            )
        packed = torch.tensor([float(has_batch), samples, tokens, targets], dtype=torch.float64)
        packed = self.state.device.tensor_to_device(packed)
        dist.all_reduce(packed, "SUM")
        ranks, *sums = packed.tolist()
        if ranks < self.world_size:
            return None
        all_samples, all_tokens, all_targets = (total / self.copies for total in sums)
        return Counts(
            whole_count(all_samples), whole_count(all_tokens), all_targets, int(tokens), targets
        )


_NOTHING: Any = object()


def whole_count(count: Number) -> int:
    """Returns a count summed over ranks as an int (a rank may hold a fraction of a sequence)."""
    if isinstance(count, int):
        return count
    whole = round(count)
    if abs(count - whole) > 1e-4:
        raise ValueError(
            f"a batch holds {count} samples or tokens over all ranks; the sum must be a whole "
            "number: check get_num_samples_in_batch and get_num_tokens_in_batch of the DataSpec."
        )
    return whole
