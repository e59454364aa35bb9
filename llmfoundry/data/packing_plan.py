"""Which pieces share a row, planned from their lengths alone: no tokens, no files."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_fit"]


def best_fit(lengths: Sequence[int] | NDArray[np.integer], capacity: int) -> list[list[int]]:
    """Puts every piece whole into a row, into few rows, by best fit decreasing.

    From the longest piece to the shortest, each goes into the row that it leaves the least space
    in, or into a new one. A piece costs ``O(log capacity)``, however many rows there are. The same
    lengths always give the same plan.

    Args:
        lengths: Tokens of each piece, 1 to ``capacity``.
        capacity: Tokens of a row.

    Returns:
        The indices of each row's pieces. They are in the order of ``lengths``, and the rows in that
        of their first pieces: the place of a piece must not tell how long it is.

    Raises:
        ValueError: A piece is empty or longer than a row.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    bad = np.flatnonzero((sizes < 1) | (sizes > capacity))
    if bad.size:
        raise ValueError(
            f"Piece {bad[0]} has {sizes[bad[0]]} tokens, but a piece of a row of {capacity} has 1 "
            "to as many: leave out what is empty and cut what is longer."
        )
    free = _FreeSpace(capacity)
    rows: list[list[int]] = []
    for piece in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[piece])
        space = free.least(size)
        if space is None:
            row, space = len(rows), capacity
            rows.append([])
        else:
            row = free.take(space)
        rows[row].append(piece)
        free.put(row, space - size)
    return sorted(sorted(row) for row in rows)


class _FreeSpace:
    """Rows by their free space; a tree of counts finds the least space that is enough."""

    def __init__(self, capacity: int) -> None:
        self._leaves = 1 << capacity.bit_length()
        self._counts = [0] * (2 * self._leaves)
        self._rows: list[list[int]] = [[] for _ in range(capacity + 1)]

    def put(self, row: int, space: int) -> None:
        self._rows[space].append(row)
        self._count(space, 1)

    def take(self, space: int) -> int:
        self._count(space, -1)
        return self._rows[space].pop()

    def least(self, size: int) -> int | None:
        """The least free space of a row that ``size`` fits into, None if there is no such row."""
        node = self._leaves + size
        if self._counts[node]:
            return size
        # Up, until a neighbour to the right (more space) holds a row; then down, to its left end.
        while node % 2 or not self._counts[node + 1]:
            node //= 2
            if node <= 1:
                return None
        node += 1
        while node < self._leaves:
            node = 2 * node + (not self._counts[2 * node])
        return node - self._leaves

    def _count(self, space: int, change: int) -> None:
        node = self._leaves + space
        while node:
            self._counts[node] += change
            node //= 2
