"""Which places of an epoch a rank's worker loads. Slicing is all that ranks and workers do."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_PLACES_AT_ONCE = 1 << 14
_SPAN_AT_ONCE = 1 << 22  # Of all ranks and workers: where many share a block, it costs all of them.


@dataclass(frozen=True)
class Slicer:
    """Cuts an epoch's places from ``start`` on into global batches, and those into device batches.

    A global batch is a stretch of ``num_ranks * batch_size`` places, and a device batch is its
    rank's stretch of that. Batch b of a rank is loaded by its worker ``b % num_workers``. Hence
    each global batch is the same whatever the number of ranks (if it has the same size) and
    workers.

    The last, shorter batch is shared out evenly. Only where this would leave a rank without any
    sample, or give some ranks a full batch and others not (of which ``drop_last`` would drop a
    part, and the rest would wait for ever), samples of that batch are repeated.

    Args:
        length: Places in the epoch.
        start: First place, where a resumed run goes on.
        batch_size: Samples of a device batch.
        num_ranks: Number of ranks.
        drop_partial: Whether the last, shorter global batch is left out.
    """

    length: int
    start: int
    batch_size: int
    num_ranks: int
    drop_partial: bool = False

    @property
    def global_batch_size(self) -> int:
        """Samples of a whole batch over all ranks."""
        return self.batch_size * self.num_ranks

    @property
    def num_full(self) -> int:
        """How many whole global batches are left."""
        return max(0, self.length - self.start) // self.global_batch_size

    def last_batch(self, rank: int) -> NDArray[np.int64]:
        """A rank's places of the last, shorter batch."""
        rest = max(0, self.length - self.start) % self.global_batch_size
        if not rest or self.drop_partial:
            return np.empty(0, np.int64)
        if rest <= self.num_ranks:
            within = np.array([rank % rest])
        elif rest > self.global_batch_size - self.num_ranks:
            within = (rank * self.batch_size + np.arange(self.batch_size)) % rest
        else:
            within = np.arange(rest * rank // self.num_ranks, rest * (rank + 1) // self.num_ranks)
        return self.length - rest + within

    def places(
        self, rank: int, worker: int = 0, num_workers: int = 1
    ) -> Iterator[NDArray[np.int64]]:
        """The places that a worker of a rank loads, some batches at a time."""
        span = self.global_batch_size * num_workers
        at_once = max(1, min(_PLACES_AT_ONCE // self.batch_size, _SPAN_AT_ONCE // span))
        batches = range(worker, self.num_full, num_workers)
        within = np.arange(self.batch_size) + self.start + rank * self.batch_size
        for first in range(0, len(batches), at_once):
            chosen = np.array(batches[first : first + at_once], np.int64)
            yield (chosen[:, None] * self.global_batch_size + within).ravel()
        if self.num_full % num_workers == worker:
            last = self.last_batch(rank)
            if last.size:
                yield last

    def count(self, rank: int) -> int:
        """How many samples a rank loads."""
        return self.num_full * self.batch_size + self.last_batch(rank).size

    def own_count(self, rank: int) -> int:
        """How many samples a rank loads before those that repeat others for its sake."""
        rest = max(0, self.length - self.start) % self.global_batch_size
        last = self.last_batch(rank).size
        if 0 < rest <= self.num_ranks:
            last = min(last, int(rank < rest))
        elif rest > self.global_batch_size - self.num_ranks:
            last = min(last, max(0, rest - rank * self.batch_size))
        return self.num_full * self.batch_size + last

    def place_after(self, rank: int, num_samples: int) -> int:
        """The epoch's place that is reached when a rank has taken so many samples."""
        batches, within = divmod(num_samples, self.batch_size)
        if batches > self.num_full or (batches == self.num_full and within):
            return max(self.length, self.start)
        place = self.start + batches * self.global_batch_size + within * self.num_ranks
        return min(place, max(self.length, self.start))
