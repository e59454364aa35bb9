"""From a sample's number in the whole to its shard and its place there."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np


class Spanner:
    """Finds shard and offset of a global sample number.

    Args:
        shard_sizes: Samples per shard; empty shards are allowed.
        span_size: Kept for old callers; the search needs no such grid.
    """

    def __init__(self, shard_sizes: Sequence[int] | np.ndarray, span_size: int = 1 << 10) -> None:
        self.shard_sizes = np.asarray(shard_sizes, np.int64)
        self.span_size = span_size
        bounds = np.concatenate([[0], self.shard_sizes.cumsum()])
        self.shard_bounds = bounds
        self.num_samples = int(bounds[-1])
        self._starts = bounds[:-1].tolist()  # A list: bisecting it is ten times faster than numpy.

    def __getitem__(self, index: int) -> tuple[int, int]:
        """``(shard, offset)`` of a sample."""
        if not 0 <= index < self.num_samples:
            raise IndexError(f"Invalid sample index {index}: 0 <= {index} < {self.num_samples}.")
        shard = bisect_right(self._starts, index) - 1
        return shard, index - self._starts[shard]
