"""The plan of rows against best fit decreasing done the long way."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmfoundry.data.packing_plan import best_fit


@st.composite
def pieces_and_capacity(draw: st.DrawFn) -> tuple[list[int], int]:
    capacity = draw(st.integers(1, 40))
    return draw(st.lists(st.integers(1, capacity), max_size=60)), capacity


def rows_of_naive_best_fit(lengths: list[int], capacity: int) -> list[int]:
    """The free spaces that are left when each piece, the longest first, looks at every row."""
    free: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row, space in enumerate(free) if space >= length]
        if fitting:
            row = min(fitting, key=lambda row: free[row])
            free[row] -= length
        else:
            free.append(capacity - length)
    return sorted(free)


@settings(deadline=None, max_examples=300)
@given(pieces_and_capacity())
def test_rows_are_those_of_best_fit_decreasing(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    rows = best_fit(lengths, capacity)
    assert sorted(piece for row in rows for piece in row) == list(range(len(lengths)))
    free = [capacity - sum(lengths[piece] for piece in row) for row in rows]
    assert all(space >= 0 for space in free)
    assert sorted(free) == rows_of_naive_best_fit(lengths, capacity)
    assert all(row == sorted(row) for row in rows) and rows == sorted(rows)
    assert best_fit(np.array(lengths, dtype=np.int32), capacity) == rows


@pytest.mark.parametrize("bad", [0, 9, -1])
def test_pieces_that_are_no_pieces_of_a_row(bad: int) -> None:
    with pytest.raises(ValueError, match=f"Piece 2 has {bad} tokens, but a piece of a row of 8"):
        best_fit([3, 8, bad], 8)
