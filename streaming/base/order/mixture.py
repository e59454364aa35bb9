"""Which stream each place of an epoch draws from, and that stream's how-manieth sample it is."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streaming.base.order.blocks import BlockShuffle, group_by_block

Drawn = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Stream of each place, and place in that stream's part."""

_UNITS_PER_BLOCK = 4096


class Mixer(Protocol):
    """How streams are mixed."""

    length: int

    def __call__(self, places: NDArray[np.int64]) -> Drawn:
        """What each place draws."""
        ...


def cut(counts: Sequence[int], place: int) -> list[int]:
    """How many of the first ``place`` draws come from each stream, evenly spread.

    Draw k of a stream of c stands at (k + 1/2) / c of the epoch; this counts those before the cut.
    Counts never fall from one cut to the next, and they add up to ``place``.
    """
    total = sum(counts)
    taken = [min(c, (2 * c * place + total) // (2 * total)) if total else 0 for c in counts]
    while sum(taken) != place or not _is_cut(counts, taken):
        last, first = _edge(counts, taken)
        if sum(taken) >= place:
            taken[last] -= 1
        if sum(taken) < place:
            last, first = _edge(counts, taken)
            taken[first] += 1
    return taken


def _key(count: int, number: int) -> float:
    """Where a draw stands in the epoch: exactly rounded, hence the same everywhere."""
    return (number + 0.5) / count


def _edge(counts: Sequence[int], taken: Sequence[int]) -> tuple[int, int]:
    """The stream whose draw is the last before the cut, and the one whose is the first after it."""
    before = [(_key(c, t - 1), s) for s, (c, t) in enumerate(zip(counts, taken, strict=True)) if t]
    after = [(_key(c, t), s) for s, (c, t) in enumerate(zip(counts, taken, strict=True)) if t < c]
    return max(before, default=(0.0, -1))[1], min(after, default=(0.0, -1))[1]


def _is_cut(counts: Sequence[int], taken: Sequence[int]) -> bool:
    """Whether everything before the cut stands before everything after it."""
    last, first = _edge(counts, taken)
    if last < 0 or first < 0:
        return True
    return (_key(counts[last], taken[last] - 1), last) < (_key(counts[first], taken[first]), first)


class Concatenated:
    """One stream after the other."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.length = sum(counts)
        self._ends = np.cumsum(counts)
        self._starts = self._ends - np.asarray(counts)

    def __call__(self, places: NDArray[np.int64]) -> Drawn:
        """What each place draws."""
        stream = np.searchsorted(self._ends, places, side="right")
        return stream, places - self._starts[stream]


class Sampled:
    """Streams mixed at random, each in its share in every block."""

    def __init__(self, counts: Sequence[int], block_size: int, *key: int | str) -> None:
        self.length = sum(counts)
        self._counts = list(counts)
        self._block_size = max(1, block_size)
        self._shuffle = BlockShuffle(self.length, self._block_size, *key, "mixture")
        self._cuts = lru_cache(maxsize=16)(self._cut)

    def _cut(self, block: int) -> NDArray[np.int64]:
        return np.array(cut(self._counts, min(block * self._block_size, self.length)))

    def __call__(self, places: NDArray[np.int64]) -> Drawn:
        """What each place draws."""
        places = self._shuffle(places)
        stream, number = np.empty_like(places), np.empty_like(places)
        for block, chosen in group_by_block(places, self._block_size):
            first, behind = self._cuts(block), self._cuts(block + 1)
            ends = (behind - first).cumsum()
            within = places[chosen] - block * self._block_size
            source = np.searchsorted(ends, within, side="right")
            stream[chosen] = source
            number[chosen] = within - ends[source] + behind[source]
        return stream, number


class Stratified:
    """Streams woven evenly: every stretch of places holds each in about its share.

    By `cut` a stream is off its share p by less than (1 + p (n - 2)) / 2 before any place, and so
    by less than 1 + p (n - 2) in any stretch: of n = 2 streams a stretch of G places holds p G,
    rounded down or up. None is closer for all n and all stretches, and exact shares of batches
    would make the order depend on their size.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self.length = sum(counts)
        self._counts = list(counts)
        self._windows = lru_cache(maxsize=4)(self._window)

    _size = 1 << 14

    def _window(self, window: int) -> Drawn:
        """What a whole stretch of places draws."""
        first = cut(self._counts, window * self._size)
        behind = cut(self._counts, min((window + 1) * self._size, self.length))
        streams, numbers, keys = [], [], []
        for stream, (start, stop) in enumerate(zip(first, behind, strict=True)):
            number = np.arange(start, stop)
            streams.append(np.full(len(number), stream))
            numbers.append(number)
            keys.append((number + 0.5) / max(1, self._counts[stream]))
        stream, number = np.concatenate(streams), np.concatenate(numbers)
        order = np.lexsort((stream, np.concatenate(keys)))
        return stream[order], number[order]

    def __call__(self, places: NDArray[np.int64]) -> Drawn:
        """What each place draws."""
        stream, number = np.empty_like(places), np.empty_like(places)
        for window, chosen in group_by_block(places, self._size):
            streams, numbers = self._windows(window)
            within = places[chosen] - window * self._size
            stream[chosen], number[chosen] = streams[within], numbers[within]
        return stream, number


class WholeUnits:
    """Units of neighbouring places, each from one stream, in random order.

    Args:
        counts: Samples of each stream; what does not fill a unit is left out.
        unit: Places of a unit.
        multiple: The number of units is rounded down to a multiple of it.
        key: Parts of the key that chooses the order.
    """

    def __init__(self, counts: Sequence[int], unit: int, multiple: int, *key: int | str) -> None:
        units = [count // unit for count in counts]
        self._unit = unit
        self._units = Sampled(units, _UNITS_PER_BLOCK, *key, "units")
        self.length = sum(units) // multiple * multiple * unit

    def __call__(self, places: NDArray[np.int64]) -> Drawn:
        """What each place draws."""
        number, within = np.divmod(places, self._unit)
        stream, first = self._units(number)
        return stream, first * self._unit + within
