"""Makes shards ready a little before they are read, in threads of the process that reads them."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from streaming.base.cache import NoRoomError, ShardCache

log = logging.getLogger(__name__)

_MAX_THREADS = 4
_LEAST_SHARDS = 3  # The one that is read included.
_MAX_AHEAD = 1 << 16  # Samples; only numbers are kept of them.
_ROOM_PAUSE_SECONDS = 0.05


class Prefetcher:
    """Passes sample numbers on, and makes the shards of those to come ready, several at a time.

    What goes wrong in a thread is not lost: the reader, when it comes to the shard, tries for
    itself and raises.

    Args:
        cache: The shards.
        parts: Which shards of the cache a shard of the order is made of; most often itself.
        shard_ends: Number of the sample after the last one of each shard.
        predownload: How many samples ahead to look; None for 8 batches, and two shards at least.
        batch_size: Samples of a batch.
    """

    def __init__(
        self,
        cache: ShardCache,
        parts: Callable[[int], Sequence[int]],
        shard_ends: NDArray[np.int64],
        predownload: int | None,
        batch_size: int,
    ) -> None:
        self._cache = cache
        self._parts = parts
        self._shard_ends = shard_ends
        self._distance = 8 * batch_size if predownload is None else predownload
        self._least_shards = _LEAST_SHARDS if predownload is None else 1
        self._window: dict[int, int] = {}
        """How many of the samples ahead are of each shard of the order."""
        self._soon: dict[int, int] = {}
        """How many shards of the window are made of each shard of the cache."""
        self._wanted: deque[int] = deque()
        self._changed = threading.Condition()
        self._num_threads = 0
        self._is_done = False

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._is_done)
                if self._is_done:
                    return
                shard = self._wanted.popleft()
            try:
                if shard in self._soon:
                    self._cache.prepare(shard, is_ahead=True)
            except NoRoomError:  # Until the reader is done with another shard.
                with self._changed:
                    self._wanted.append(shard)
                    self._changed.wait_for(lambda: self._is_done, _ROOM_PAUSE_SECONDS)
            except Exception as error:  # See above.
                log.info("Fetching shard %d ahead failed: %s", shard, error)

    def __call__(self, chunks: Iterator[NDArray[np.int64]]) -> Iterator[int]:
        """The sample numbers, one by one."""
        pairs = self._pairs(chunks)
        ahead: deque[tuple[int, int]] = deque()
        window, cache = self._window, self._cache
        cache.windows[id(self)] = self._soon
        try:
            while True:
                while not self._sees_enough(len(ahead)):
                    pair = next(pairs, None)
                    if pair is None:
                        break
                    self._enter(pair[1])
                    ahead.append(pair)
                if not ahead:
                    return
                sample, shard = ahead.popleft()
                yield sample
                if not _take_off(window, shard):  # It has been read, now.
                    for part in self._parts(shard):
                        _take_off(self._soon, part)
        finally:
            del cache.windows[id(self)]
            with self._changed:
                self._is_done = True
                self._changed.notify_all()

    def _pairs(self, chunks: Iterator[NDArray[np.int64]]) -> Iterator[tuple[int, int]]:
        """The samples, each with its shard."""
        for chunk in chunks:
            shards = np.searchsorted(self._shard_ends, chunk, side="right")
            yield from zip(chunk.tolist(), shards.tolist(), strict=True)

    def _sees_enough(self, count: int) -> bool:
        if count <= self._distance:
            return False
        return len(self._window) >= self._least_shards or count > _MAX_AHEAD

    def _enter(self, shard: int) -> None:
        if shard in self._window:
            self._window[shard] += 1
            return
        self._window[shard] = 1
        for part in self._parts(shard):
            self._soon[part] = self._soon.get(part, 0) + 1
            if self._soon[part] == 1 and not self._cache.is_open(part):
                self._want(part)

    def _want(self, shard: int) -> None:
        if self._num_threads < _MAX_THREADS:
            self._num_threads += 1
            threading.Thread(target=self._work, name="shard-prefetch", daemon=True).start()
        with self._changed:
            self._wanted.append(shard)
            self._changed.notify()


def _take_off(counts: dict[int, int], key: int) -> int:
    """Counts one less, and says how many are left."""
    left = counts[key] - 1
    if left:
        counts[key] = left
    else:
        del counts[key]
    return left
