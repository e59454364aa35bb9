"""What a dataset asks of its order: sample numbers for a worker, and states to resume from."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.base.constant import DEFAULT_SHUFFLE_BLOCK
from streaming.base.distributed import get_rank
from streaming.base.order.epoch import Mixture, check_batching, epoch_length, order
from streaming.base.order.record import describe, differences
from streaming.base.order.sequence import StreamDraw
from streaming.base.order.slices import Slicer
from streaming.base.progress import Start
from streaming.base.world import World

log = logging.getLogger(__name__)

ON_MIXTURE_CHANGE = ("error", "record")

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
    on_mixture_change: str = "error"
    packing: str | None = None


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

    def samples_left(self, start: Start, loading: Loading) -> int | None:
        """How many samples the rank takes from ``start`` on; None if other batches change that."""
        ...

    def place_after(self, start: Start, loading: Loading, num_samples: int) -> int:
        """The epoch's place that is reached when a rank has taken so many samples."""
        ...

    def state(self, start: Start, sample: int, loading: Loading | None) -> dict[str, Any]:
        """What must be kept to go on at this place of the epoch."""
        ...

    def start_from(self, state: dict[str, Any], seed: int, loading: Loading | None) -> Start:
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
            packing=options.packing,
        )
        self._records_changes = options.on_mixture_change == "record"
        self._changes: list[list[Any]] = []

    def mixture(self, loading: Loading) -> Mixture:
        """What an epoch is made of, for these batches."""
        mixture = self._in_batches(loading)
        check_batching(mixture)
        return mixture

    def _in_batches(self, loading: Loading | None) -> Mixture:
        if loading is None:
            return self._mixture
        return replace(
            self._mixture, batch_size=loading.batch_size, num_ranks=loading.world.num_ranks
        )

    def num_places(self, loading: Loading) -> int:
        """Samples of an epoch over all ranks, less those of a last batch that is left out."""
        total = epoch_length(self.mixture(loading))
        left_out = total % (loading.batch_size * loading.world.num_ranks)
        return total - left_out if loading.drop_partial else total

    def slicer(self, start: Start, loading: Loading) -> Slicer:
        """How the epoch is cut into batches from its start on."""
        mixture, sample = self.mixture(loading), start.sample
        if sample % mixture.unit:
            sample -= sample % mixture.unit
            warn_once(
                f"Resuming at sample {start.sample}, in the middle of a batch of {mixture.unit}: "
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

    def samples_left(self, start: Start, loading: Loading) -> int | None:
        """How many samples the rank takes from ``start`` on; None if it goes on before it."""
        if start.sample % self.mixture(loading).unit:
            return None
        return self.slicer(start, loading).count(loading.world.rank)

    def place_after(self, start: Start, loading: Loading, num_samples: int) -> int:
        """The epoch's place that is reached when a rank has taken so many samples."""
        return self.slicer(start, loading).place_after(loading.world.rank, num_samples)

    def state(self, start: Start, sample: int, loading: Loading | None) -> dict[str, Any]:
        """What must be kept to go on at this place of the epoch."""
        mixture = self._in_batches(loading)
        state = {
            "epoch": start.epoch,
            "sample_in_epoch": min(sample, sum(self._mixture.counts)),
            "shuffle_seed": start.seed,
            "order": self.name,
            "mixture": mixture.fingerprint(),
            "made_of": describe(mixture),
        }
        return {**state, "changes": self._changes} if self._changes else state

    def start_from(self, state: dict[str, Any], seed: int, loading: Loading | None) -> Start:
        """Where a kept state says to go on.

        The state's seed counts, not the dataset's.

        Raises:
            ValueError: if the mixture has changed since, and changes are not to be recorded.
        """
        mixture = self._in_batches(loading)
        epoch, sample = int(state["epoch"]), int(state["sample_in_epoch"])
        loaded_seed = int(state.get("shuffle_seed", seed))
        changes = list(state.get("changes", []))
        if (epoch, sample) == (0, 0):
            pass  # Nothing has been taken yet: there is no place to lose.
        elif state.get("order") != self.name:
            if sample:
                warnings.warn(
                    "The loaded state is of another order (one that depends on canonical nodes), "
                    f"so the epoch goes on at sample {sample} of a different permutation: some of "
                    "its samples come twice and some not at all. Pass order='mosaic' to go on "
                    "exactly.",
                    stacklevel=3,
                )
            changes.append([epoch, sample, "order=mosaic", describe(mixture)])
        elif state.get("mixture") != mixture.fingerprint():
            before, after = state.get("made_of", "unknown"), describe(mixture)
            known = before != "unknown"
            changed = differences(before, after) if known else [f"unknown -> {after}"]
            if loaded_seed != seed:
                changed.append(f"shuffle_seed: {loaded_seed} -> {seed} (only rounds weights)")
            self._change(epoch, sample, "; ".join(changed))
            changes.append([epoch, sample, before, after])
        if loaded_seed != seed:
            _log_on_first_rank(
                "The order goes on with shuffle_seed=%d, as the loaded state says; the dataset was "
                "given %d.",
                loaded_seed,
                seed,
            )
        self._changes = changes
        return Start(epoch, sample, loaded_seed, None, None)

    def _change(self, epoch: int, sample: int, changed: str) -> None:
        """Says that the mixture is another from here on, or refuses it."""
        if not self._records_changes:
            raise ValueError(
                f"The mixture has changed since the state was saved: {changed}. Sample {sample} of "
                f"epoch {epoch} is another one now. Give the dataset what it was made of to go on "
                "exactly; or pass on_mixture_change='record' to go on at this sample of the new "
                "mixture, of which some samples of this epoch then come twice and some not at all."
            )
        _log_on_first_rank(
            "From sample %d of epoch %d on the mixture is another: %s. The states from now on tell "
            "of it.",
            sample,
            epoch,
            changed,
        )


def _log_on_first_rank(message: str, *facts: object) -> None:
    """Logs what is the same on all ranks, on the first."""
    if get_rank() == 0:
        log.warning(message, *facts)


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
