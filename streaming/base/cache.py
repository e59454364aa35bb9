"""The shards of a dataset as a process reads them: fetched at need, few open, bounded on disk."""

import errno
import logging
import os
import random
import time
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

from streaming.base.files import TMP_SUFFIX, name_when_made, remove_abandoned
from streaming.base.format.reader import Reader
from streaming.base.stream import Stream, making_room

log = logging.getLogger(__name__)

_MAX_OPEN = 256
_MAX_OPEN_BOUNDED = 16  # Space on disk is free only when a removed file is closed as well.
_MAX_BYTES_IN_MEMORY = 1 << 30
_TOUCH_SECONDS = 1.0
_ROOM_SECONDS = 600.0
_REQUEST_BYTES = 4 << 20
"""What comes about as fast as the answer to one more request."""


class NoRoomError(Exception):
    """The cache is full of what is just being made or, to one who looks ahead, soon to be read."""


class ShardCache:
    """Opens shards, and removes those not used for longest when the disk share is used up.

    Processes that share a folder need no word with each other: each sees the files of the others,
    also those in the making, in their full size, and makes room before it fills its own.

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
        self._in_memory: set[int] = set()
        """The shards that were last read whole, since their folder cannot be written."""
        self._touched: dict[int, float] = {}
        self._asked: dict[int, tuple[int, int]] = {}
        """How many samples of a shard were read from its source, and the last one's number."""
        self._files: dict[str, int] = {}
        self._folders: set[str] = set()
        self.windows: dict[int, dict[int, int]] = {}
        """The shards that are about to be read, by who reads, as keys."""
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
        return {**self.__dict__, "_open": OrderedDict(), "_files": {}, "windows": {}}

    def is_open(self, number: int) -> bool:
        """Whether a shard can be read at once."""
        return self._shards[number].is_open

    def read(self, number: int, idx: int) -> Any:
        """A sample of a shard: alone from its source, where that is cheaper than the shard."""
        shard = self._shards[number]
        if not shard.is_open and self._is_cheaper_alone(number, idx):
            return self._streams[number].read_one(shard, idx)
        return self.get(number).read(idx)

    def _is_cheaper_alone(self, number: int, idx: int) -> bool:
        """Whether a sample is asked for out of order, and few of its shard were before."""
        asked, last = self._asked.get(number, (0, -2))
        if 2 * _REQUEST_BYTES * (1 + asked) > self._shards[number].get_raw_size():
            return False
        if idx == last + 1:
            return False
        if any(number in window for window in list(self.windows.values())):
            return False
        if not self._streams[number].can_read_one(self._shards[number]):
            return False
        self._asked[number] = asked + 1, idx
        return True

    def get(self, number: int) -> Reader:
        """An open shard."""
        shard = self._shards[number]
        if not shard.is_open:
            self._open_shard(number, shard)
        elif self._limit is not None or self._in_memory:
            self._mark_used(number)
        return shard

    def _mark_used(self, number: int) -> None:
        """Says, to all processes of the node, that a shard is in use."""
        try:
            self._open.move_to_end(number)
        except KeyError:  # The thread that fetches ahead has just removed it.
            return
        now = time.monotonic()
        if now - self._touched.get(number, 0.0) > _TOUCH_SECONDS:
            self._touched[number] = now
            _touch(self._shards[number])

    def _open_shard(self, number: int, shard: Reader) -> None:
        if self.prepare(number):
            self._in_memory.discard(number)
            shard.open()
        else:
            self._read_whole(number, shard)
        while len(self._open) >= self._max_open:
            self._open.popitem(last=False)[1].close()
        if self._limit is not None:
            self._close_removed()
        self._open[number] = shard
        if self._limit is not None:
            self._mark_used(number)

    def _read_whole(self, number: int, shard: Reader) -> None:
        """Reads a shard into memory, and lets go those not used for longest that fill it."""
        if not self._in_memory:
            log.warning(
                "%s cannot be written: its shards are read into memory, at most %d bytes of them "
                "in each process, and again when they had to go. Make `local` a folder that can.",
                shard.folder,
                _MAX_BYTES_IN_MEMORY,
            )
        self._in_memory.add(number)
        held = [other for other in list(self._open) if other in self._in_memory]
        sizes = [self._shards[other].get_raw_size() for other in (number, *held)]
        while held and sum(sizes) > _MAX_BYTES_IN_MEMORY:
            self._open.pop(held[0], shard).close()
            del held[0], sizes[1]
        shard.attach(list(self._streams[number].raw_contents(shard)))

    def _close_removed(self) -> None:
        """Closes what another process has removed, to free its space."""
        for number, shard in list(self._open.items()):
            if number not in self._in_memory and not all(
                os.path.exists(shard.raw_path(pair)) for pair in shard.file_pairs
            ):
                shard.close()
                self._open.pop(number, None)

    def prepare(self, number: int, is_ahead: bool = False) -> bool:
        """Makes a shard's files ready on disk, and room for them first.

        Args:
            number: The shard.
            is_ahead: Gives up, with NoRoomError, rather than take room from what is read before.

        Returns:
            Whether they are there; if not, nothing can be written, and memory must do.
        """
        shard, stream = self._shards[number], self._streams[number]
        make_room = None if self._limit is None else partial(self._make_room, number, is_ahead)
        deadline = time.monotonic() + _ROOM_SECONDS
        while True:
            try:
                with making_room(make_room):
                    stream.prepare_shard(shard)
                return True
            except NoRoomError as error:
                if is_ahead:
                    raise
                if time.monotonic() > deadline:
                    raise ValueError(f"{error} Increase `cache_limit`.") from None
                time.sleep(random.uniform(0.01, 0.05))
            except OSError as error:
                is_here = str(error.filename).startswith(shard.folder)
                if not is_here or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                if not stream.can_evict(shard):
                    raise
                return False

    def usage(self) -> int:
        """Bytes on disk of all shards and indexes."""
        return self._index_bytes + sum(size for _, _, size, _ in self._on_disk())

    def _on_disk(self) -> list[tuple[float, int, int, str]]:
        """(last use, shard, bytes, path) of the files that are here, whole or in the making."""
        if not self._files:
            for number, shard in enumerate(self._shards):
                for pair in shard.file_pairs:
                    for info in (pair.raw, pair.zip):
                        if info is not None:
                            self._files[os.path.join(shard.folder, info.basename)] = number
            self._folders = set(map(os.path.dirname, self._files))
        found = []
        for folder in self._folders:
            try:
                names = os.listdir(folder)
            except FileNotFoundError:
                continue
            for name in names:
                path = os.path.join(folder, name)
                whole = name_when_made(path)
                number = self._files.get(whole)
                if number is None:
                    continue
                for place in dict.fromkeys((path, whole)):
                    try:
                        facts = os.stat(place)
                    except FileNotFoundError:  # Just removed, or finished.
                        continue
                    found.append((facts.st_mtime, number, facts.st_size, place))
                    break
        return sorted(found)

    def _make_room(self, number: int, is_ahead: bool) -> None:
        """Removes shards until all that is here, and is being made, is within the limit."""
        assert self._limit is not None
        while True:
            found = self._on_disk()
            usage = self._index_bytes + sum(size for _, _, size, _ in found)
            if usage <= self._limit:
                return
            others = [path for _, other, _, path in found if other != number]
            others = [path for path in others if path.endswith(TMP_SUFFIX)]
            if any(list(map(remove_abandoned, others))):
                continue
            for victim in self._victims(found, number, is_ahead):
                usage -= self.evict(victim)
                if usage <= self._limit:
                    return
            message = (
                f"Cache limit ({self._limit} bytes) is too low: {usage} bytes are in use, with the "
                f"{self._shards[number].get_raw_size()} of a shard to come"
            )
            if others or is_ahead:
                raise NoRoomError(f"{message}, and other processes are filling the rest.")
            raise ValueError(f"{message}, and nothing can be removed. Increase `cache_limit`.")

    def _victims(
        self, found: list[tuple[float, int, int, str]], number: int, is_ahead: bool
    ) -> list[int]:
        """The shards that may go, those used longest ago first, and last those about to be read."""
        soon = {shard for window in list(self.windows.values()) for shard in list(window)}
        late: list[int] = []
        for other in _by_last_use(found):
            if other != number and self._streams[other].can_evict(self._shards[other]):
                late.append(other)
        now = [other for other in late if other not in soon]
        return now if is_ahead else now + [other for other in late if other in soon]

    def evict(self, number: int) -> int:
        """Removes a shard's files as far as they can be had again; returns how many bytes."""
        self._open.pop(number, None)
        return self._streams[number].evict_shard(self._shards[number])

    def evict_coldest(self) -> bool:
        """Removes the shard that was used longest ago; says whether there was one."""
        return any(map(self.evict, _by_last_use(self._on_disk())))


def _by_last_use(found: list[tuple[float, int, int, str]]) -> list[int]:
    """The shards whose files are these and whole, the one not used for longest first."""
    last = [number for _, number, _, path in reversed(found) if not path.endswith(TMP_SUFFIX)]
    return list(dict.fromkeys(last))[::-1]


def _touch(shard: Reader) -> None:
    for pair in shard.file_pairs:
        try:
            os.utime(shard.raw_path(pair))
        except OSError:
            pass
