"""Which sample each node, rank and worker loads when, in the orders of mosaicml-streaming."""

import warnings

import numpy as np
from numpy.typing import NDArray


def get_partitions(
    algo: str,
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> NDArray[np.int64]:
    """Places of an epoch by node, rank, worker, batch and slot; -1 where there is none.

    Args:
        algo: ``orig`` or ``relaxed`` (which also lets a run go on under any number of nodes).
        num_samples: Places of the epoch.
        num_canonical_nodes: Rows that the places are first laid out in.
        num_physical_nodes: Number of nodes.
        ranks_per_node: Ranks on each node.
        workers_per_rank: Loader workers of each rank.
        batch_size: Samples of a device batch.
        drop_first: Places that were already used.
        initial_physical_nodes: Number of nodes when the run began.
    """
    if algo not in algos:
        raise ValueError(f"Invalid partition algorithm: {algo}. Must be one of {sorted(algos)}.")
    return algos[algo](
        num_samples,
        num_canonical_nodes,
        num_physical_nodes,
        ranks_per_node,
        workers_per_rank,
        batch_size,
        drop_first,
        initial_physical_nodes,
    )


def _lay_out(num_samples: int, num_canonical_nodes: int, num_nodes: int) -> NDArray[np.int64]:
    """The global order: rows of neighbours, one a canonical node, read column by column."""
    columns = -(-num_samples // num_canonical_nodes)
    ratio = max(1, num_nodes // num_canonical_nodes)
    padding = -columns % ratio
    if num_samples < num_canonical_nodes or (
        num_samples == num_canonical_nodes and num_canonical_nodes < num_nodes
    ):
        warnings.warn(
            f"Trying to partition {num_samples} samples over {num_canonical_nodes} canonical "
            "nodes. This will result in many samples being repeated. Use fewer canonical nodes or "
            "more data.",
            stacklevel=4,
        )
        cells = num_canonical_nodes * (columns + padding)
        rows = (np.arange(cells) % num_samples).reshape(num_canonical_nodes, columns + padding)
        return rows.T.ravel()
    bounds = np.arange(num_canonical_nodes + 1) * num_samples // num_canonical_nodes
    rows = bounds[:-1, None] + np.arange(columns)
    rows = np.minimum(rows, bounds[1:, None] - 1)
    if padding:
        stop = columns - ratio + 1
        rows = np.concatenate([rows, rows[:, stop - padding : stop]], axis=1)
    return rows.T.ravel()


def _fill_ranks(places: NDArray[np.int64], ranks: int) -> NDArray[np.int64]:
    """A node's places with as many repeats behind as make them divide by its ranks."""
    length = places.shape[1]
    missing = -length % ranks
    if not missing:
        return places
    if ranks + missing - 1 <= length:
        stop = length - ranks + 1
        return np.concatenate([places, places[:, stop - missing : stop]], axis=1)
    warnings.warn(
        f"Attempting to partition {length} samples per physical node over {ranks} gpus. This will "
        "result in many samples being repeated. Use fewer ranks or more data.",
        stacklevel=4,
    )
    return places[:, np.arange(length + missing) % length]


def get_partitions_orig(
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> NDArray[np.int64]:
    """As ``get_partitions`` with ``orig``."""
    if num_canonical_nodes % num_physical_nodes and num_physical_nodes % num_canonical_nodes:
        raise ValueError(
            "Either canonical or physical nodes must be evenly divisible by the other, otherwise "
            "striping data across physical nodes may lead to each node needing every shard: there "
            f"are {num_canonical_nodes} canonical and {num_physical_nodes} physical nodes."
        )
    num_ranks = num_physical_nodes * ranks_per_node
    if drop_first > num_samples + (num_ranks - num_samples % num_ranks):
        raise ValueError(
            f"Resuming further into the dataset ({drop_first}) than it has samples ({num_samples})."
        )
    if not num_samples:
        return np.empty((num_physical_nodes, ranks_per_node, workers_per_rank, 0, batch_size), int)
    places = _lay_out(num_samples, num_canonical_nodes, num_physical_nodes)
    places = places[drop_first - drop_first % num_physical_nodes :]
    if not places.size:
        return np.empty((num_physical_nodes, ranks_per_node, workers_per_rank, 0, batch_size), int)
    by_node = _fill_ranks(places.reshape(-1, num_physical_nodes).T, ranks_per_node)
    by_rank = by_node.reshape(num_physical_nodes, -1, ranks_per_node).transpose(0, 2, 1)
    padding = -by_rank.shape[2] % (workers_per_rank * batch_size)
    by_rank = np.pad(by_rank, ((0, 0), (0, 0), (0, padding)), constant_values=-1)
    shape = (num_physical_nodes, ranks_per_node, -1, workers_per_rank, batch_size)
    return by_rank.reshape(shape).transpose(0, 1, 3, 2, 4)


def get_partitions_relaxed(
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> NDArray[np.int64]:
    """As ``get_partitions`` with ``relaxed``."""
    sizes = (ranks_per_node, workers_per_rank)
    divides = not (
        num_canonical_nodes % num_physical_nodes and num_physical_nodes % num_canonical_nodes
    )
    if initial_physical_nodes is None or divides:
        return get_partitions_orig(
            num_samples, num_canonical_nodes, num_physical_nodes, *sizes, batch_size, drop_first
        )
    global_batch = num_physical_nodes * ranks_per_node * batch_size
    initial_ranks = initial_physical_nodes * ranks_per_node
    if global_batch % initial_ranks:
        raise ValueError(
            f"A global batch size of {global_batch} is not evenly divisible by the initial total "
            f"number of devices, {initial_ranks}. Keep the global batch size, or start anew."
        )
    initial = get_partitions_orig(
        num_samples,
        num_canonical_nodes,
        initial_physical_nodes,
        *sizes,
        global_batch // initial_ranks,
        drop_first,
    )
    flat = initial.transpose(3, 2, 0, 1, 4).ravel()
    shape = (-1, workers_per_rank, num_physical_nodes, ranks_per_node, batch_size)
    return flat.reshape(shape).transpose(2, 3, 1, 0, 4)


algos = {"orig": get_partitions_orig, "relaxed": get_partitions_relaxed}
