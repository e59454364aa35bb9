"""The shards of a dataset as a process reads them: fetched at need, few open, bounded on disk."""

import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from streaming.base.format.reader import Reader
from streaming.base.stream import Stream, present_bytes

_MAX_OPEN = 256
_MAX_OPEN_BOUNDED = 16  # Space on disk is free only when a removed file is closed as well.


class ShardCache:
    """Opens shards, and removes those not used for longest when the disk share is used up.

    Args:
        shards: All shards.
        streams: The streams.
        stream_per_shard: Which stream each shard is of.
        limit: Bytes on disk over all streams of this node, indexes included; None for no limit.
    """

    def __init__(
        self,
        shards: Sequence[Reader],
        streams: Sequence[Stream],
        stream_per_shard: Sequence[int],
        limit: int | None,
    ) -> None:
        self._shards = shards
        self._streams = [streams[number] for number in stream_per_shard]
        self._index_bytes = sum(stream.get_index_size() for stream in streams)
        self._limit = limit
        self._open: OrderedDict[int, Reader] = OrderedDict()
        self._max_open = _MAX_OPEN if limit is None else _MAX_OPEN_BOUNDED
        if limit is not None:
            self._check_limit(limit)

    def _check_limit(self, limit: int) -> None:
        if limit <= self._index_bytes:
            raise ValueError(
                f"Minimum cache usage ({self._index_bytes} bytes) is larger than the cache limit "
                f"({limit} bytes). Please raise `cache_limit`."
            )
        largest = max(shard.get_max_size() for shard in self._shards)
        if limit < 4 * largest:
            raise ValueError(
                f"Cache limit ({limit} bytes) is too low. Increase the `cache_limit` to at least "
                f"four times the largest shard, which takes {largest} bytes."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def get(self, number: int) -> Reader:
        """An open shard."""
        shard = self._shards[number]
        if not shard.is_open:
            self._open_shard(number, shard)
        elif self._limit is not None:
            self._mark_used(number)
        return shard

    def _mark_used(self, number: int) -> None:
        try:
            self._open.move_to_end(number)
        except KeyError:  # The thread that fetches ahead has just removed it.
            pass

    def _open_shard(self, number: int, shard: Reader) -> None:
        self.prepare(number)
        try:
            shard.open()
        except FileNotFoundError:
            if not self._streams[number].can_evict(shard):
                raise
            # Nothing can be written here (prepare has not complained otherwise): keep it in memory.
            shard.attach(list(self._streams[number].raw_contents(shard)))
        while len(self._open) >= self._max_open:
            self._open.popitem(last=False)[1].close()
        self._open[number] = shard
        if self._limit is not None:
            _touch(shard)

    def prepare(self, number: int) -> None:
        """Makes a shard's files ready on disk, and room for them first."""
        shard, stream = self._shards[number], self._streams[number]
        if self._limit is not None and present_bytes(shard) < shard.get_raw_size():
            self._make_room(shard.get_max_size(), keep=number)
        try:
            stream.prepare_shard(shard)
        except PermissionError:
            if not stream.can_evict(shard):
                raise
        except OSError as error:
            if error.errno != 30 or not stream.can_evict(shard):  # 30: a read-only file system.
                raise

    def usage(self) -> int:
        """Bytes on disk of all shards and indexes."""
        return self._index_bytes + sum(present_bytes(shard) for shard in self._shards)

    def _make_room(self, needed: int, keep: int) -> None:
        assert self._limit is not None
        while (usage := self.usage()) + needed > self._limit:
            if not self.evict_coldest(keep):
                raise ValueError(
                    f"Cache limit ({self._limit} bytes) is too low: {usage} bytes are in use, "
                    f"{needed} more are needed, and nothing can be removed. Increase `cache_limit`."
                )

    def evict(self, number: int) -> int:
        """Removes a shard's files as far as they can be had again; returns how many bytes."""
        self._open.pop(number, None)
        return self._streams[number].evict_shard(self._shards[number])

    def evict_coldest(self, keep: int | None = None) -> bool:
        """Removes the shard that was opened longest ago; says whether there was one."""
        ages = []
        for number, shard in enumerate(self._shards):
            if number != keep and self._streams[number].can_evict(shard):
                if (opened := _last_opened(shard)) is not None:
                    ages.append((opened, number))
        return any(self.evict(number) for _, number in sorted(ages))


def _touch(shard: Reader) -> None:
    """Marks a shard as just used, for all processes of the node."""
    for pair in shard.file_pairs:
        try:
            os.utime(shard.raw_path(pair))
        except OSError:
            pass


def _last_opened(shard: Reader) -> float | None:
    times = []
    for pair in shard.file_pairs:
        try:
            times.append(os.stat(shard.raw_path(pair)).st_mtime)
        except FileNotFoundError:
            continue
    return max(times, default=None)
