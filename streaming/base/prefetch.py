"""Makes shards ready a little before they are read, in a thread of the process that reads them."""

import threading
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray


class Prefetcher:
    """Passes sample numbers on, and calls ``prepare`` for the shards of those to come.

    What goes wrong in the thread is not lost: the reader, when it comes to the shard, tries for
    itself and raises.

    Args:
        prepare: Makes a shard ready.
        shard_ends: Number of the sample after the last one of each shard.
        distance: How many samples ahead to look.
    """

    def __init__(
        self, prepare: Callable[[int], object], shard_ends: NDArray[np.int64], distance: int
    ) -> None:
        self._prepare = prepare
        self._shard_ends = shard_ends
        self._distance = distance
        self._wanted: deque[int] = deque()
        self._changed = threading.Condition()
        self._is_done = False

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._is_done)
                if self._is_done:
                    return
                shard = self._wanted.popleft()
            try:
                self._prepare(shard)
            except Exception:  # See above.
                return

    def __call__(self, chunks: Iterator[NDArray[np.int64]]) -> Iterator[int]:
        """The sample numbers, one by one."""
        thread = threading.Thread(target=self._work, name="shard-prefetch", daemon=True)
        thread.start()
        ahead: deque[int] = deque()
        last_shard = -1
        try:
            for chunk in chunks:
                shards = np.searchsorted(self._shard_ends, chunk, side="right").tolist()
                for sample, shard in zip(chunk.tolist(), shards, strict=True):
                    if shard != last_shard:
                        self._want(shard)
                        last_shard = shard
                    ahead.append(sample)
                    if len(ahead) > self._distance:
                        yield ahead.popleft()
            yield from ahead
        finally:
            with self._changed:
                self._is_done = True
                self._changed.notify()

    def _want(self, shard: int) -> None:
        with self._changed:
            if shard not in self._wanted:
                self._wanted.append(shard)
                self._changed.notify()
