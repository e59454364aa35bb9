"""Shuffles that keep shards together, in the orders of mosaicml-streaming."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]
Ids = NDArray[np.int64]


def get_shuffle(
    algo: str,
    shard_sizes: Sequence[int] | NDArray[np.int64],
    num_canonical_nodes: int,
    seed: int,
    epoch: int,
    block_size: int = 1 << 18,
) -> Ids:
    """Sample at each place.

    Args:
        algo: Name of the algorithm.
        shard_sizes: Samples of each unit that is shuffled as a whole.
        num_canonical_nodes: Parts that are shuffled apart.
        seed: Seed of the shuffle.
        epoch: Number of the epoch.
        block_size: Places that ``py1br`` and ``py1e`` mix with each other.
    """
    if algo not in algos:
        raise ValueError(f"Invalid shuffle algorithm: {algo}. Must be one of {sorted(algos)}.")
    if seed < 0:
        raise ValueError(f"`seed` must be non-negative, but got {seed}.")
    sizes = np.asarray(shard_sizes, np.int64)
    return algos[algo](sizes, num_canonical_nodes, seed, epoch, block_size)


def _cut_spans(spans: Sequence[Span], parts: int) -> list[list[Span]]:
    """Spans dealt to parts of equal size, in order; those at a border are cut."""
    total = sum(stop - start for start, stop in spans)
    bounds = [total * (part + 1) // parts for part in range(parts)]
    out: list[list[Span]] = [[] for _ in bounds]
    part, place = 0, 0
    for start, stop in spans:
        while start < stop:
            while place >= bounds[part]:
                part += 1
            size = min(stop - start, bounds[part] - place)
            out[part].append((start, start + size))
            start, place = start + size, place + size
    return out


def _spans_of(sizes: Ids) -> list[Span]:
    ends = sizes.cumsum()
    return list(zip((ends - sizes).tolist(), ends.tolist(), strict=True))


def _shuffled_parts(
    sizes: Ids, parts: int, seed: int, epoch: int
) -> tuple[list[list[Span]], np.random.Generator]:
    """Spans dealt to parts as in every epoch, each part's shuffled for this one."""
    spans = _spans_of(sizes)
    np.random.default_rng(seed).shuffle(spans)  # type: ignore[arg-type]
    dealt = _cut_spans(spans, parts)
    rng = np.random.default_rng(seed + epoch)
    for part in dealt:
        rng.shuffle(part)  # type: ignore[arg-type]
    return dealt, rng


def get_shuffle_naive(
    shard_sizes: Ids, num_canonical_nodes: int, seed: int, epoch: int, block_size: int = 1 << 18
) -> Ids:
    """All samples with each other."""
    return np.random.default_rng(seed + epoch).permutation(int(shard_sizes.sum()))


def get_shuffle_py1s(
    shard_sizes: Ids, num_canonical_nodes: int, seed: int, epoch: int, block_size: int = 1 << 18
) -> Ids:
    """Shards, and the samples within each piece of a shard."""
    parts, rng = _shuffled_parts(shard_sizes, num_canonical_nodes, seed, epoch)
    ids = []
    for part in parts:
        for start, stop in part:
            ids.append(np.arange(start, stop))
            rng.shuffle(ids[-1])
    return np.concatenate(ids)


def get_shuffle_py2s(
    shard_sizes: Ids, num_canonical_nodes: int, seed: int, epoch: int, block_size: int = 1 << 18
) -> Ids:
    """As ``py1s``, with the samples of whole shards shuffled before they are cut."""
    rng0 = np.random.default_rng(seed)
    shards = [np.arange(start, stop) for start, stop in _spans_of(shard_sizes)]
    order = list(range(len(shards)))
    rng0.shuffle(order)  # type: ignore[arg-type]
    for number in order:
        rng0.shuffle(shards[number])
    spans, place = [], 0
    for number in order:
        spans.append((place, place + len(shards[number])))
        place += len(shards[number])
    flat = np.concatenate([shards[number] for number in order])
    rng = np.random.default_rng(seed + epoch)
    ids = []
    for part in _cut_spans(spans, num_canonical_nodes):
        rng.shuffle(part)  # type: ignore[arg-type]
        for start, stop in part:
            ids.append(flat[start:stop].copy())
            rng.shuffle(ids[-1])
    return np.concatenate(ids)


def get_shuffle_py1e(
    shard_sizes: Ids, num_canonical_nodes: int, seed: int, epoch: int, block_size: int = 1 << 18
) -> Ids:
    """Shards, and then each sample by up to about half a block to either side."""
    parts, rng = _shuffled_parts(shard_sizes, num_canonical_nodes, seed, epoch)
    out, was_small = [], False
    for part in parts:
        part_size = sum(stop - start for start, stop in part)
        if not part_size:
            raise ValueError(
                "The number of samples assigned to a canonical node is 0: there are fewer samples "
                f"({int(shard_sizes.sum())}) than canonical nodes ({num_canonical_nodes}). Use "
                "fewer canonical nodes or more data."
            )
        ids = [np.arange(start, stop) for start, stop in part]
        for span in ids:
            rng.shuffle(span)
        places, offset = np.arange(part_size, dtype=np.float64), 0
        for span in ids:
            size = len(span)
            block = rng.integers(int(0.75 * block_size), int(1.25 * block_size))
            was_small |= bool(block < size)
            cut = max((block - size) / 2, 0)
            low, high = max(-cut, -offset), min(cut, part_size - offset - size)
            places[offset : offset + size] += rng.uniform(low, high, size)
            offset += size
        out.append(np.concatenate(ids)[np.argsort(places)])
    if was_small:
        warnings.warn(
            f"Shuffle block size was smaller than shard size for some shards: {block_size}. Use a "
            "larger `shuffle_block_size`.",
            stacklevel=3,
        )
    return np.concatenate(out)


def get_shuffle_py1br(
    shard_sizes: Ids, num_canonical_nodes: int, seed: int, epoch: int, block_size: int = 1 << 18
) -> Ids:
    """Shards, and the samples within blocks of random size."""
    parts, rng = _shuffled_parts(shard_sizes, num_canonical_nodes, seed, epoch)
    flat = [np.arange(start, stop) for part in parts for start, stop in part]
    ids = np.concatenate(flat)
    staggers = rng.integers(0, int(0.75 * block_size), (num_canonical_nodes,))
    start = 0
    for part, stagger in zip(parts, staggers.tolist(), strict=True):
        stop = start + sum(b - a for a, b in part)
        end, ranges = start, []
        while end < stop:
            size = int(rng.integers(int(0.75 * block_size), int(1.25 * block_size)))
            first, behind = max(end - stagger, start), min(end + size - stagger, stop)
            ranges.append((first, behind))
            end += behind - first
        for first, behind in ranges:
            rng.shuffle(ids[first:behind])
        start = stop
    return ids


algos: dict[str, Callable[..., Ids]] = {
    "naive": get_shuffle_naive,
    "py1br": get_shuffle_py1br,
    "py1e": get_shuffle_py1e,
    "py1s": get_shuffle_py1s,
    "py2s": get_shuffle_py2s,
}
