"""Slices: ranks and workers share an epoch out without loss."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.base.order import Slicer


def batches(slicer: Slicer, rank: int, workers: int = 1) -> list[list[int]]:
    """A rank's batches in the order in which torch's loader hands them out."""
    queues = []
    for worker in range(workers):
        flat = [p for part in slicer.places(rank, worker, workers) for p in part.tolist()]
        size = slicer.batch_size
        queues.append([flat[i : i + size] for i in range(0, len(flat), size)])
    out = []
    while any(queues):
        for queue in queues:
            if queue:
                out.append(queue.pop(0))
    return out


SIZES = st.tuples(st.integers(1, 120), st.integers(0, 60), st.integers(1, 7), st.integers(1, 5))


@settings(max_examples=200, deadline=None)
@given(SIZES, st.integers(1, 4), st.booleans())
def test_slices_are_complete(sizes: tuple[int, ...], workers: int, drop: bool) -> None:
    length, start, batch, ranks = sizes
    slicer = Slicer(length, start, batch, ranks, drop)
    by_rank = [batches(slicer, rank, workers) for rank in range(ranks)]
    whole = max(0, length - start) // (batch * ranks)
    # All ranks have the same number of batches, full ones up to the last.
    assert len({len(mine) for mine in by_rank}) == 1
    for number in range(whole):
        merged = [place for mine in by_rank for place in mine[number]]
        first = start + number * batch * ranks
        assert merged == list(range(first, first + batch * ranks))
    rest = list(range(start + whole * batch * ranks, length))
    if drop or not rest:
        assert len(by_rank[0]) == whole
        return
    last = [mine[-1] for mine in by_rank]
    merged = [place for mine in last for place in mine]
    assert set(merged) == set(rest) and all(last)
    own = [slicer.own_count(rank) - whole * batch for rank in range(ranks)]
    assert sorted(p for mine, n in zip(last, own, strict=True) for p in mine[:n]) == rest  # B09
    # With drop_last either every rank drops its last batch or none does.
    assert len({len(mine) == batch for mine in last}) == 1
    if ranks <= len(rest) <= batch * ranks - ranks:
        assert sorted(merged) == rest


@settings(max_examples=100, deadline=None)
@given(SIZES, st.booleans())
def test_every_rank_says_the_same_place(sizes: tuple[int, ...], drop: bool) -> None:
    length, start, batch, ranks = sizes
    slicer = Slicer(length, start, batch, ranks, drop)
    taken = [[len(b) for b in batches(slicer, rank)] for rank in range(ranks)]
    for number in range(len(taken[0]) + 1):
        places = {
            slicer.place_after(rank, min(number * batch, slicer.count(rank)))
            for rank in range(ranks)
        }
        full = start + number * batch * ranks
        expected = full if number <= slicer.num_full else max(length, start)
        assert places == {min(expected, max(length, start))}


@settings(max_examples=100, deadline=None)
@given(SIZES, st.integers(0, 9), st.integers(1, 5), st.integers(1, 3))
def test_resuming_is_the_tail_under_any_topology(
    sizes: tuple[int, ...], taken: int, ranks: int, workers: int
) -> None:
    length, start, batch, before = sizes
    slicer = Slicer(length, start, batch, before)
    place = slicer.place_after(0, taken * batch)
    later = Slicer(length, place, batch, ranks)
    seen = {p for rank in range(ranks) for b in batches(later, rank, workers) for p in b}
    assert seen == set(range(place, length))


def test_places_come_in_bounded_parts() -> None:
    first = next(Slicer(10**10, 0, 4, 8).places(3))
    assert len(first) <= 1 << 14 and first[:5].tolist() == [12, 13, 14, 15, 44]
    np.testing.assert_array_equal(np.diff(first[::4]), 32)
    # Of many ranks' workers each takes little, or it would look into every block of a long stretch.
    first = next(Slicer(10**10, 0, 4, 1024).places(3, 1, 4))
    assert first[-1] - first[0] < 1 << 22 and first[:5].tolist() == [4108, 4109, 4110, 4111, 20492]
