"""Iteration: tuples, mapping, streams and progress."""

import io

import pytest

from composer.utils.iter_helpers import (
    IteratorFileStream,
    ensure_tuple,
    iterate_with_callback,
    map_collection,
)


@pytest.mark.parametrize(
    "given, expected",
    [
        (None, ()),
        ("ab", ("ab",)),
        (b"ab", (b"ab",)),
        ([1, 2], (1, 2)),
        ((1,), (1,)),
        ({"a": 1, "b": 2}, (1, 2)),
        (3, (3,)),
        (range(2), (0, 1)),
    ],
)
def test_ensure_tuple(given, expected):
    assert ensure_tuple(given) == expected


def test_map_collection():
    def double(x):
        return 2 * x

    assert map_collection(None, double) is None
    assert map_collection((1, 2), double) == (2, 4)
    assert map_collection([1], double) == [2]
    assert map_collection({"a": 1}, double) == {"a": 2}
    assert map_collection(1, double) == 2


def test_iterator_as_file():
    chunks = [b"ab", b"", b"cdefg", b"h"]
    assert io.BufferedReader(IteratorFileStream(iter(chunks)), 3).read() == b"abcdefgh"
    stream = IteratorFileStream(iter(chunks))
    assert stream.readable() and stream.read(1) == b"a"


def test_progress_is_reported():
    seen = []
    chunks = iterate_with_callback(iter([b"ab", b"c"]), 3, lambda *size: seen.append(size))
    assert b"".join(chunks) == b"abc"
    assert seen == [(0, 3), (2, 3), (3, 3)]
