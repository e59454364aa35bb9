"""Shuffling in blocks: far places stay far, so that few shards are needed at a time."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from streaming.base.order.feistel import Permutation, make_key


class BlockShuffle:
    """Permutes 0 to ``size - 1`` within blocks of ``block_size``.

    Args:
        size: How many places there are.
        block_size: Places of a block; the last one may be shorter.
        key: Parts of the key that chooses the permutations.
    """

    def __init__(self, size: int, block_size: int, *key: int | str) -> None:
        self.size = size
        self.block_size = max(1, block_size)
        self._key = key
        self._blocks = lru_cache(maxsize=8)(self._make_block)

    def _make_block(self, block: int) -> Permutation:
        start = block * self.block_size
        size = min(self.block_size, self.size - start)
        return Permutation(size, make_key(*self._key, "block", block))

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each place goes."""
        out = np.empty_like(places)
        for block, chosen in group_by_block(places, self.block_size):
            start = block * self.block_size
            out[chosen] = self._blocks(block)(places[chosen] - start) + start
        return out


def group_by_block(
    places: NDArray[np.int64], block_size: int
) -> list[tuple[int, slice | NDArray[np.bool_]]]:
    """Each block that places fall into, with those places."""
    if places.size == 0:
        return []
    blocks = places // block_size
    if blocks[0] == blocks[-1] and (blocks == blocks[0]).all():
        return [(int(blocks[0]), slice(None))]
    return [(int(block), blocks == block) for block in np.unique(blocks)]
