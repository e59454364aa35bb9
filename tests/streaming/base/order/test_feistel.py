"""Computed permutations."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.base.order.blocks import BlockShuffle
from streaming.base.order.feistel import Permutation, feistel, make_key, shuffled


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**64 - 1))
def test_is_a_permutation(size: int, key: int) -> None:
    assert sorted(feistel(np.arange(size), size, key)) == list(range(size))
    assert sorted(shuffled(key, size)) == list(range(size))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(0, 2**63))
def test_each_place_may_have_its_own_size_and_key(sizes: list[int], key: int) -> None:
    places = np.concatenate([np.arange(size) for size in sizes])
    size_of = np.repeat(sizes, sizes)
    keys = np.repeat(np.arange(key, key + len(sizes), dtype=np.uint64), sizes)
    start = 0
    got = feistel(places, size_of, keys)
    for number, size in enumerate(sizes):
        alone = feistel(np.arange(size), size, key + number)
        np.testing.assert_array_equal(got[start : start + size], alone)
        start += size


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 500), st.integers(1, 600), st.integers(0, 99))
def test_blocks_keep_to_themselves(size: int, block: int, seed: int) -> None:
    got = BlockShuffle(size, block, seed)(np.arange(size))
    assert sorted(got) == list(range(size))
    np.testing.assert_array_equal(got // block, np.arange(size) // block)


def test_small_ones_are_uniform() -> None:
    hits = np.zeros((5, 5))
    for key in range(1000):
        hits[np.arange(5), feistel(np.arange(5), 5, make_key(key))] += 1
    assert abs(hits / 1000 - 0.2).max() < 0.06


def test_large_ones_look_random() -> None:
    size = 1 << 20
    got = feistel(np.arange(100_000), size, make_key("large"))
    assert len(np.unique(got)) == len(got)
    assert abs(got.mean() / size - 0.5) < 0.01
    steps = np.abs(np.diff(got)) / size
    assert abs(steps.mean() - 1 / 3) < 0.01
    np.testing.assert_array_equal(Permutation(size, make_key("large"))(np.arange(9)), got[:9])


def test_the_order_of_all_time() -> None:
    """A change here changes every run that is resumed: it must never be by accident."""
    assert make_key(17, "a", 3) == 1805480664069660
    assert feistel(np.arange(8), 1000, 7).tolist() == [835, 900, 53, 680, 370, 820, 215, 439]
    assert shuffled(7, 8).tolist() == [1, 5, 7, 0, 4, 6, 3, 2]
