"""Permutations that are computed element by element, so that they take no memory.

Only integer arithmetic of fixed width is used: the same seed gives the same order on every machine
and under every numpy version, which a random generator's stream does not promise.
"""

import hashlib
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_U64 = np.uint64
_MASK = (1 << 64) - 1
_ROUNDS = 8
_TABLE_SIZE = 1 << 16
_MIN_BITS = 6  # Below it a Feistel network has too few distinct rounds; walking makes up for it.
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def make_key(*parts: int | str) -> int:
    """A 64-bit key from numbers and words, well mixed."""
    text = "\0".join(map(str, parts)).encode("utf-8")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64: every input bit moves every output bit."""
    x = (x ^ (x >> _U64(30))) * _U64(_MIX_1)
    x = (x ^ (x >> _U64(27))) * _U64(_MIX_2)
    return x ^ (x >> _U64(31))


def random_words(key: int, count: int) -> NDArray[np.uint64]:
    """Pseudo-random 64-bit words."""
    steps = np.arange(1, count + 1, dtype=_U64)
    return mix(_U64(key) + steps * _U64(_GOLDEN))


def shuffled(key: int, count: int) -> NDArray[np.int64]:
    """A permutation of 0 to ``count - 1``, as a table."""
    return np.argsort(random_words(key, count), kind="stable")


def feistel(
    x: NDArray[np.int64], size: NDArray[np.int64] | int, key: NDArray[np.uint64] | int
) -> NDArray[np.int64]:
    """Sends each ``x`` in 0 to ``size - 1`` to its image under the permutation of its key.

    Args:
        x: Places to look up.
        size: How many elements are permuted; one number, or one for each place.
        key: Which permutation; one number, or one for each place.
    """
    if x.size == 0:
        return x
    sizes = np.broadcast_to(np.asarray(size, _U64), x.shape)
    keys = np.broadcast_to(np.asarray(key, _U64), x.shape)
    bits = np.maximum(_bit_length(sizes - _U64(1)), _U64(_MIN_BITS))
    out = x.astype(_U64)
    todo = np.arange(x.size)
    while todo.size:
        # Cycle walking: a place outside goes round again until it comes back inside.
        out[todo] = _network(out[todo], bits[todo], keys[todo])
        todo = todo[out[todo] >= sizes[todo]]
    return out.astype(np.int64)


def _bit_length(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Bits that each number needs; numbers stay far below 2**53."""
    return np.frexp(x.astype(np.float64))[1].astype(_U64)


def _network(
    x: NDArray[np.uint64], bits: NDArray[np.uint64], key: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """One pass of the Feistel network on numbers of ``bits`` bits."""
    low_bits = bits >> _U64(1)
    one = _U64(1)
    low_mask, high_mask = (one << low_bits) - one, (one << (bits - low_bits)) - one
    low, high = x & low_mask, x >> low_bits
    for number in range(_ROUNDS):
        salt = key + _U64((number + 1) * _GOLDEN & _MASK)
        if number % 2:
            low = low ^ (mix(high + salt) & low_mask)
        else:
            high = high ^ (mix(low + salt) & high_mask)
    return (high << low_bits) | low


class Permutation:
    """One permutation of 0 to ``size - 1``: a table if it is small, computed if it is not."""

    def __init__(self, size: int, key: int) -> None:
        self.size = size
        self.key = key

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        return shuffled(self.key, self.size)

    def __call__(self, x: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each place goes."""
        if self.size <= _TABLE_SIZE:
            return self._table[x]
        return feistel(x, self.size, self.key)
