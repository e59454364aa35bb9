"""How streams share batches, in the orders of mosaicml-streaming."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.base.partition import get_partitions
from streaming.base.shuffle import get_shuffle
from streaming.base.world import World

Ids = NDArray[np.int64]


class _Weighted(Protocol):
    """A stream whose share of the epoch is known."""

    proportion: float


class WorkSource(Protocol):
    """What the generators below ask of a dataset."""

    streams: Sequence[_Weighted]
    epoch_size: int
    batch_size: int
    partition_algo: str
    num_canonical_nodes: int
    initial_physical_nodes: int | None
    shuffle: bool
    shuffle_algo: str
    shuffle_seed: int
    shuffle_block_size: int
    epoch_seed_change: bool

    def resample_streams(self, epoch: int, stream_id: int | None = None) -> tuple[Ids, Ids]:
        """Sizes of the units that are shuffled as a whole, and the sample at each place."""
        ...


def generate_work(
    batching_method: str, dataset: Any, world: World, epoch: int, sample_in_epoch: int
) -> Ids:
    """Sample numbers by node, rank, worker, batch and slot; -1 where there is none."""
    if batching_method not in batching_methods:
        raise ValueError(
            f"Invalid batching method: {batching_method}. Must be one of "
            f"{', '.join(batching_methods)}."
        )
    return batching_methods[batching_method](dataset, world, epoch, sample_in_epoch)


def _lookup(dataset: WorkSource, units: Ids, ids: Ids, places: Ids, epoch: int, block: int) -> Ids:
    """Samples at places, -1 staying -1."""
    if dataset.shuffle:
        shuffle = get_shuffle(
            dataset.shuffle_algo,
            units,
            dataset.num_canonical_nodes,
            dataset.shuffle_seed,
            epoch,
            block,
        )
        ids = ids[shuffle]
    return np.where(places < 0, -1, ids[places])


def generate_work_random_batching(
    dataset: WorkSource, world: World, epoch: int, sample_in_epoch: int
) -> Ids:
    """All streams are shuffled together."""
    units, ids = dataset.resample_streams(epoch)
    places = get_partitions(
        dataset.partition_algo,
        dataset.epoch_size,
        dataset.num_canonical_nodes,
        world.num_nodes,
        world.ranks_per_node,
        world.workers_per_rank,
        dataset.batch_size,
        sample_in_epoch,
        dataset.initial_physical_nodes,
    )
    return _lookup(dataset, units, ids, places, epoch, dataset.shuffle_block_size)


def _stream_batches(
    dataset: WorkSource,
    world: World,
    epoch: int,
    number: int,
    grid: tuple[int, int, int],
    size: int,
) -> Ids:
    """A stream's samples, partitioned by itself over a grid (nodes, ranks, workers)."""
    units, ids = dataset.resample_streams(epoch, number)
    places = get_partitions(
        dataset.partition_algo,
        len(ids),
        dataset.num_canonical_nodes,
        *grid,
        size,
        0,
        dataset.initial_physical_nodes,
    )
    block = int(dataset.shuffle_block_size * dataset.streams[number].proportion)
    return _lookup(dataset, units, ids, places, epoch, block)


def _stream_order(dataset: WorkSource, epoch: int, counts: Sequence[int]) -> Ids:
    """Which stream each batch is of: shuffled even where samples are not."""
    seed = dataset.shuffle_seed + (epoch if dataset.epoch_seed_change else 0)
    order = np.repeat(np.arange(len(counts)), counts)
    np.random.default_rng(seed).shuffle(order)
    return order


def _arrange(order: Ids, batches: Sequence[Ids]) -> Ids:
    """Batches of all streams in the order of streams."""
    out = np.empty((len(order), *batches[0].shape[1:]), np.int64)
    for number, part in enumerate(batches):
        out[order == number] = part
    return out


def _deal(batches: Ids, world: World) -> Ids:
    """Global batches, each (nodes, ranks, samples), dealt to workers in turn."""
    padding = -len(batches) % world.workers_per_rank
    batches = np.pad(batches, ((0, padding), (0, 0), (0, 0), (0, 0)), constant_values=-1)
    shape = (-1, world.workers_per_rank, *batches.shape[1:])
    return batches.reshape(shape).transpose(2, 3, 1, 0, 4)


def _global_batch(dataset: WorkSource, world: World) -> int:
    return world.num_ranks * dataset.batch_size


def _too_few(number: int, what: str, size: int, count: int) -> ValueError:
    return ValueError(
        f"Stream with index {number} does not have an adequate number of samples to construct a "
        f"complete {what} batch of {size}: the epoch takes {count} from it. Take more of it, or "
        "use a smaller batch."
    )


def generate_work_per_stream_batching(
    dataset: WorkSource, world: World, epoch: int, sample_in_epoch: int
) -> Ids:
    """Each global batch is of one stream."""
    grid = (world.num_nodes, world.ranks_per_node, 1)
    size = _global_batch(dataset, world)
    batches = []
    for number in range(len(dataset.streams)):
        dealt = _stream_batches(dataset, world, epoch, number, grid, dataset.batch_size)
        count = len(dataset.resample_streams(epoch, number)[1])
        if count < size:
            raise _too_few(number, "global", size, count)
        batches.append(dealt[:, :, 0].transpose(2, 0, 1, 3)[: count // size])
    order = _stream_order(dataset, epoch, [len(part) for part in batches])
    return _deal(_arrange(order, batches)[sample_in_epoch // size :], world)


def generate_work_stratified_batching(
    dataset: WorkSource, world: World, epoch: int, sample_in_epoch: int
) -> Ids:
    """Each global batch holds the same number of samples of a stream as every other."""
    size = _global_batch(dataset, world)
    shares = np.array([stream.proportion * size for stream in dataset.streams])
    counts = shares.astype(np.int64)
    largest = np.argsort(-(shares - counts), kind="stable")
    counts[largest[: size - int(counts.sum())]] += 1
    parts = []
    for number, count in enumerate(counts.tolist()):
        if not count:
            raise ValueError(
                f"Number of samples for stream {number} is 0 because its proportion, "
                f"{dataset.streams[number].proportion:.6g} of a global batch of {size}, is less "
                "than one sample. Increase the batch size or the stream's proportion."
            )
        flat = _stream_batches(dataset, world, epoch, number, (1, 1, 1), 1).ravel()
        parts.append(flat[: len(flat) // count * count].reshape(-1, count))
    fewest = min(len(part) for part in parts)
    batches = np.concatenate([part[:fewest] for part in parts], axis=1)[sample_in_epoch // size :]
    shape = (-1, world.num_nodes, world.ranks_per_node, dataset.batch_size)
    return _deal(batches.reshape(shape), world)


def generate_work_device_per_stream_batching(
    dataset: WorkSource, world: World, epoch: int, sample_in_epoch: int
) -> Ids:
    """Each device batch is of one stream."""
    canonical = dataset.num_canonical_nodes
    if canonical % world.num_nodes:
        raise ValueError(
            f"For `device_per_stream` batching, the number of canonical nodes ({canonical}) must "
            f"be divisible by the number of physical nodes ({world.num_nodes})."
        )
    size = dataset.batch_size
    by_stream = []
    for number in range(len(dataset.streams)):
        flat = _stream_batches(dataset, world, epoch, number, (canonical, 1, 1), 1)
        rows = flat.reshape(world.num_nodes, canonical // world.num_nodes, -1)
        rows = rows.transpose(0, 2, 1).reshape(world.num_nodes, -1)
        count = rows.shape[1] // size
        if not count:
            raise _too_few(number, "device", size, rows.shape[1])
        by_stream.append(rows[:, : count * size].reshape(world.num_nodes, count, size))
    order = _stream_order(dataset, epoch, [part.shape[1] for part in by_stream])
    devices = world.ranks_per_node * world.workers_per_rank
    nodes = []
    for node in range(world.num_nodes):
        batches = _arrange(order, [part[node] for part in by_stream])
        padding = devices - len(batches) % devices
        batches = np.pad(batches, ((0, padding), (0, 0)), constant_values=-1)
        nodes.append(batches)
    dealt = np.stack(nodes)
    skipped = sample_in_epoch // _global_batch(dataset, world) * world.ranks_per_node
    dealt = dealt[:, skipped:]
    padding = -dealt.shape[1] % devices
    dealt = np.pad(dealt, ((0, 0), (0, padding), (0, 0)), constant_values=-1)
    shape = (world.num_nodes, -1, world.workers_per_rank, world.ranks_per_node, size)
    return dealt.reshape(shape).transpose(0, 3, 2, 1, 4)


batching_methods: dict[str, Callable[..., Ids]] = {
    "random": generate_work_random_batching,
    "stratified": generate_work_stratified_batching,
    "per_stream": generate_work_per_stream_batching,
    "device_per_stream": generate_work_device_per_stream_batching,
}
