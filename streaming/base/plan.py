"""What a dataset asks of its order: sample numbers for a worker, and states to resume from."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.base.constant import DEFAULT_SHUFFLE_BLOCK
from streaming.base.order.epoch import Mixture, check_batching, epoch_length, order
from streaming.base.order.sequence import StreamDraw
from streaming.base.order.slices import Slicer
from streaming.base.progress import Start
from streaming.base.world import World

_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Warns, but only the first time in this process."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, stacklevel=4)


@dataclass(frozen=True)
class OrderOptions:
    """The arguments of a dataset that say in which order samples come."""

    shuffle: bool
    shuffle_algo: str
    shuffle_block_size: int | None
    sampling_method: str
    sampling_granularity: int
    partition_algo: str
    num_canonical_nodes: int | None
    batching_method: str


@dataclass(frozen=True)
class Loading:
    """Who loads: the world (one rank for each group of replicas), and in what batches."""

    world: World
    batch_size: int
    drop_partial: bool


class OrderPlan(Protocol):
    """An order of samples, for every epoch."""

    def num_places(self, loading: Loading) -> int:
        """Samples of an epoch over all ranks."""
        ...

    def sample_ids(self, start: Start, loading: Loading) -> Iterator[NDArray[np.int64]]:
        """Numbers of the samples that the worker of ``loading.world`` loads, some at a time."""
        ...

    def own_samples(self, start: Start, loading: Loading) -> int | None:
        """How many samples the rank loads before those that repeat others; None if none does."""
        ...

    def place_after(self, start: Start, loading: Loading, num_samples: int) -> int:
        """The epoch's place that is reached when a rank has taken so many samples."""
        ...

    def state(self, start: Start, sample: int) -> dict[str, Any]:
        """What must be kept to go on at this place of the epoch."""
        ...

    def start_from(self, state: dict[str, Any], seed: int) -> Start:
        """Where a kept state says to go on."""
        ...


class ExactPlan:
    """The order that depends on seed, epoch and mixture only.

    Args:
        options: The dataset's arguments.
        shard_sizes: Samples of each shard, by stream.
        choose: Samples that an epoch takes from each stream.
    """

    name = "exact"

    def __init__(
        self,
        options: OrderOptions,
        shard_sizes: Sequence[NDArray[np.int64]],
        choose: Sequence[int],
    ) -> None:
        _warn_unused(options)
        first_ids = np.cumsum([0, *(int(sizes.sum()) for sizes in shard_sizes)]).tolist()
        draws = zip(shard_sizes, choose, first_ids[:-1], strict=True)
        self._mixture = Mixture(
            draws=tuple(StreamDraw(sizes, count, first) for sizes, count, first in draws),
            shuffle=options.shuffle,
            block_size=options.shuffle_block_size or DEFAULT_SHUFFLE_BLOCK,
            sampling_method=options.sampling_method,
            granularity=options.sampling_granularity,
            batching_method=options.batching_method,
        )
        self._fingerprint = self._mixture.fingerprint()

    def mixture(self, loading: Loading) -> Mixture:
        """What an epoch is made of, for these batches."""
        mixture = replace(
            self._mixture, batch_size=loading.batch_size, num_ranks=loading.world.num_ranks
        )
        check_batching(mixture)
        return mixture

    def num_places(self, loading: Loading) -> int:
        """Samples of an epoch over all ranks."""
        return epoch_length(self.mixture(loading))

    def slicer(self, start: Start, loading: Loading) -> Slicer:
        """How the epoch is cut into batches from its start on."""
        mixture, sample = self.mixture(loading), start.sample
        whole = mixture.batch_size * mixture.num_ranks
        if mixture.unit > 1 and sample % whole:
            sample -= sample % whole
            warn_once(
                f"Resuming at sample {start.sample}, in the middle of a global batch of {whole}: "
                f"batching_method={mixture.batching_method!r} can only begin at a whole one, so "
                f"the run goes on at sample {sample}."
            )
        return Slicer(
            epoch_length(mixture),
            sample,
            loading.batch_size,
            loading.world.num_ranks,
            loading.drop_partial,
        )

    def sample_ids(self, start: Start, loading: Loading) -> Iterator[NDArray[np.int64]]:
        """Numbers of the samples that the worker of ``loading.world`` loads, some at a time."""
        world = loading.world
        epoch = order(start.seed, start.epoch, self.mixture(loading))
        slicer = self.slicer(start, loading)
        for places in slicer.places(world.rank, world.worker_of_rank, world.workers_per_rank):
            yield epoch.ids(places)

    def own_samples(self, start: Start, loading: Loading) -> int | None:
        """How many samples the rank loads before those that repeat others; None if none does."""
        slicer, rank = self.slicer(start, loading), loading.world.rank
        own = slicer.own_count(rank)
        return own if own < slicer.count(rank) else None

    def place_after(self, start: Start, loading: Loading, num_samples: int) -> int:
        """The epoch's place that is reached when a rank has taken so many samples."""
        return self.slicer(start, loading).place_after(loading.world.rank, num_samples)

    def state(self, start: Start, sample: int) -> dict[str, Any]:
        """What must be kept to go on at this place of the epoch."""
        return {
            "epoch": start.epoch,
            "sample_in_epoch": min(sample, sum(self._mixture.counts)),
            "shuffle_seed": start.seed,
            "order": self.name,
            "mixture": self._fingerprint,
        }

    def start_from(self, state: dict[str, Any], seed: int) -> Start:
        """Where a kept state says to go on; says what will not be as it was."""
        if state.get("order") != self.name:
            warnings.warn(
                "The loaded state is of another order (one that depends on canonical nodes), so "
                f"the epoch goes on at sample {state['sample_in_epoch']} of a different "
                "permutation: some of its samples come twice and some not at all. Pass "
                "order='mosaic' to go on exactly.",
                stacklevel=3,
            )
        elif state.get("mixture") != self._fingerprint:
            warnings.warn(
                "The mixture has changed since the state was saved (it was "
                f"{state.get('mixture')}, it is {self._fingerprint}): other shards, weights, "
                f"shuffling or batching. The epoch goes on at sample {state['sample_in_epoch']} of "
                "the new mixture.",
                stacklevel=3,
            )
        return Start(
            int(state["epoch"]),
            int(state["sample_in_epoch"]),
            int(state.get("shuffle_seed", seed)),
            None,
            None,
        )


def _warn_unused(options: OrderOptions) -> None:
    """Names the arguments that only choose among upstream's permutations."""
    defaults = {"shuffle_algo": "py1e", "num_canonical_nodes": None, "partition_algo": "relaxed"}
    for name, default in defaults.items():
        value = getattr(options, name)
        if value != default:
            warn_once(
                f"`{name}={value!r}` only chooses one of mosaicml-streaming's permutations, and "
                "has no effect with order='exact'. Pass order='mosaic' to have it."
            )
