"""Indexing like a numpy array, for everything that can give one item by its number."""

from collections.abc import Iterator
from typing import Any

import numpy as np


class Array:
    """Adds slices, lists, arrays and negative numbers to a class with ``size`` and ``get_item``."""

    @property
    def size(self) -> int:
        """Number of items."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.size

    def get_item(self, idx: int, /) -> Any:
        """The item of this number, from 0 to ``size - 1``."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        """All items, first to last."""
        for idx in range(self.size):
            yield self[idx]

    def __getitem__(self, at: Any) -> Any:
        """One item, or a list of items with the nesting of the index."""
        if type(at) is int and at >= 0:  # The hot path: what iteration asks for.
            if at >= self.size:
                raise IndexError(_out_of_range(at, self.size))
            return self.get_item(at)
        if isinstance(at, (int, np.integer)):
            idx = int(at)
            if not -self.size <= idx < self.size:
                raise IndexError(_out_of_range(idx, self.size))
            return self.get_item(idx % self.size)
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(self.size))]
        if isinstance(at, (list, np.ndarray)):
            return [self[i] for i in at]
        raise ValueError(
            f"Unsupported argument type {type(at)}: index by int, slice, list or array."
        )


def _out_of_range(idx: int, size: int) -> str:
    return f"Invalid sample index: {idx}, valid range: {-size} <= idx < {size}."
