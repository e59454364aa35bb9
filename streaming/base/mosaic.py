"""The orders of mosaicml-streaming, for runs that were begun with it.

They depend on canonical nodes, and through a default of those on the number of nodes when the run
began, which a state therefore keeps.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.base.batching import generate_work
from streaming.base.plan import Loading, OrderOptions
from streaming.base.progress import Start
from streaming.base.sampling import get_sampling
from streaming.base.shuffle import algos as shuffle_algos
from streaming.base.world import World

_KEYS = ("num_canonical_nodes", "shuffle_seed", "initial_physical_nodes")


@dataclass(frozen=True)
class _Share:
    """A stream's share of the epoch."""

    proportion: float


class MosaicWork:
    """A dataset as the work generators see it, with everything resolved.

    Args:
        options: The dataset's arguments.
        shard_sizes: Samples of each shard, by stream.
        choose: Samples that an epoch takes from each stream.
        start: Where the epoch begins, with the seed and node counts of a loaded state.
        loading: Who loads.
    """

    def __init__(
        self,
        options: OrderOptions,
        shard_sizes: Sequence[NDArray[np.int64]],
        choose: Sequence[int],
        start: Start,
        loading: Loading,
    ) -> None:
        self._shard_sizes, self._choose = shard_sizes, choose
        self._granularity = options.sampling_granularity
        self._is_balanced = options.sampling_method == "balanced"
        self._first_ids = np.cumsum([0, *(sizes.sum() for sizes in shard_sizes)]).tolist()
        self.epoch_size = sum(choose)
        self.streams = [_Share(count / self.epoch_size) for count in choose]
        self.batch_size = loading.batch_size
        self.partition_algo = options.partition_algo
        self.shuffle, self.shuffle_algo = options.shuffle, options.shuffle_algo
        self.shuffle_seed = start.seed
        self.epoch_seed_change = options.shuffle and self._is_balanced
        self.num_canonical_nodes = canonical_nodes(options, start, loading.world)
        self.initial_physical_nodes = start.initial_physical_nodes or loading.world.num_nodes
        self.shuffle_block_size = options.shuffle_block_size or max(
            4_000_000 // self.num_canonical_nodes, 1 << 18
        )

    def resample_streams(
        self, epoch: int, stream_id: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sizes of the units that are shuffled as a whole, and the sample at each place."""
        numbers = range(len(self._choose)) if stream_id is None else [stream_id]
        seed = self.shuffle_seed + (epoch if self._is_balanced else 0)
        rng = np.random.default_rng(seed)
        units: list[int] = []
        ids: list[NDArray[np.int64]] = []
        for number in numbers:
            sizes, first = self._shard_sizes[number], self._first_ids[number]
            counts = get_sampling(
                sizes,
                self._choose[number],
                self._granularity,
                self.shuffle_seed,
                epoch,
                self.epoch_seed_change,
            )
            for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
                repeats, rest = divmod(count, size) if size else (0, 0)
                units += [size] * repeats
                ids += [first + np.arange(size)] * repeats
                if rest:
                    units.append(rest)
                    ids.append(first + np.sort(rng.choice(size, rest, replace=False)))
                first += size
        return np.array(units, np.int64), np.concatenate([np.empty(0, np.int64), *ids])


def canonical_nodes(options: OrderOptions, start: Start, world: World) -> int:
    """Number of canonical nodes: as loaded, as given, or by default."""
    if start.num_canonical_nodes or options.num_canonical_nodes:
        return start.num_canonical_nodes or options.num_canonical_nodes or 0
    return world.num_nodes * (64 if options.shuffle_algo in ("py1s", "py2s") else 1)


class MosaicPlan:
    """The order of mosaicml-streaming for the same arguments.

    Args:
        options: The dataset's arguments.
        shard_sizes: Samples of each shard, by stream.
        choose: Samples that an epoch takes from each stream.
    """

    name = "mosaic"

    def __init__(
        self,
        options: OrderOptions,
        shard_sizes: Sequence[NDArray[np.int64]],
        choose: Sequence[int],
    ) -> None:
        if options.shuffle_algo not in shuffle_algos:
            raise ValueError(
                f"Invalid shuffle algorithm: {options.shuffle_algo}. Must be one of "
                f"{', '.join(sorted(shuffle_algos))}."
            )
        if options.on_mixture_change != "error":
            raise ValueError(
                f"on_mixture_change={options.on_mixture_change!r} has no effect with "
                "order='mosaic', whose states do not say what the mixture was. Leave it out."
            )
        self._options, self._shard_sizes, self._choose = options, shard_sizes, choose

    def num_places(self, loading: Loading) -> int:
        """Samples of an epoch over all ranks."""
        return sum(self._choose)

    def work(self, start: Start, loading: Loading) -> NDArray[np.int64]:
        """Sample numbers by node, rank, worker, batch and slot; -1 where there is none."""
        source = MosaicWork(self._options, self._shard_sizes, self._choose, start, loading)
        return generate_work(
            self._options.batching_method, source, loading.world, start.epoch, start.sample
        )

    def sample_ids(self, start: Start, loading: Loading) -> Iterator[NDArray[np.int64]]:
        """Numbers of the samples that the worker of ``loading.world`` loads."""
        world = loading.world
        work = self.work(start, loading)
        ids = work[world.node, world.rank_of_node, world.worker_of_rank].ravel()
        yield ids[ids >= 0]

    def own_samples(self, start: Start, loading: Loading) -> int | None:
        """Returns None: the repeats of this order lie anywhere and are not told apart."""
        return None

    def samples_left(self, start: Start, loading: Loading) -> int | None:
        """Returns None: where nodes do not divide the canonical ones batches must stay the same."""
        return None

    def place_after(self, start: Start, loading: Loading, num_samples: int) -> int:
        """The epoch's place that is reached when a rank has taken so many samples."""
        return (
            start.sample
            + min(num_samples, self._samples_of_rank(start, loading)) * loading.world.num_ranks
        )

    def _samples_of_rank(self, start: Start, loading: Loading) -> int:
        """How many samples each rank gets, the repeats that make ranks equal included."""
        world, total = loading.world, self.num_places(loading)
        canonical = canonical_nodes(self._options, start, world)
        cells = -(-total // canonical) * canonical
        by_node = -(-max(0, cells - start.sample) // world.num_nodes)
        return -(-by_node // world.ranks_per_node)

    def state(self, start: Start, sample: int, loading: Loading | None) -> dict[str, Any]:
        """What must be kept to go on at this place of the epoch."""
        world = World.detect()
        return {
            "epoch": start.epoch,
            "sample_in_epoch": sample,
            "num_canonical_nodes": canonical_nodes(self._options, start, world),
            "shuffle_seed": start.seed,
            "initial_physical_nodes": start.initial_physical_nodes or world.num_nodes,
        }

    def start_from(self, state: dict[str, Any], seed: int, loading: Loading | None) -> Start:
        """Where a kept state says to go on."""
        if state.get("order", self.name) != self.name and state["sample_in_epoch"]:
            warnings.warn(
                "The loaded state is of order='exact', so the epoch goes on at sample "
                f"{state['sample_in_epoch']} of a different permutation: some of its samples come "
                "twice and some not at all. Leave `order` out to go on exactly.",
                stacklevel=3,
            )
        canonical, loaded_seed, physical = (state.get(key) for key in _KEYS)
        return Start(
            int(state["epoch"]),
            int(state["sample_in_epoch"]),
            seed if loaded_seed is None else int(loaded_seed),
            canonical,
            physical,
        )
