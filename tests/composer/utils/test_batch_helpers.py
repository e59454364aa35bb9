"""Reading and replacing parts of batches of every type."""

from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from composer.utils.batch_helpers import batch_get, batch_set

Pair = namedtuple("Pair", ["x", "y"])


@pytest.mark.parametrize(
    "batch, key, part",
    [
        ({"a": 1, "b": 2}, "a", 1),
        ({"a": 1, "b": 2}, ("a", "b"), (1, 2)),
        ({"a": 1, "b": 2}, ["b"], 2),
        ([1, 2, 3], 1, 2),
        ([1, 2, 3], slice(1, None), [2, 3]),
        ((1, 2, 3), (0, 2), (1, 3)),
        (Pair(1, 2), "y", 2),
        (Pair(1, 2), 0, 1),
        (Pair(1, 2), ("x", "y"), (1, 2)),
        (SimpleNamespace(a=5), "a", 5),
        ({"a": {"b": 7}}, lambda batch: batch["a"]["b"], 7),
        ({"a": 3}, (lambda batch: batch["a"], lambda batch, value: None), 3),
    ],
)
def test_get(batch, key, part):
    assert batch_get(batch, key) == part


def test_get_of_a_tensor():
    first, second = batch_get(torch.arange(6).reshape(2, 3), (0, 1))
    assert first.tolist() == [0, 1, 2] and second.tolist() == [3, 4, 5]
    assert torch.equal(batch_get(torch.arange(6).reshape(2, 3), 1), torch.tensor([3, 4, 5]))


@pytest.mark.parametrize(
    "batch, key, value, expected",
    [
        ({"a": 1}, "a", 9, {"a": 9}),
        ({"a": 1}, "new", 9, {"a": 1, "new": 9}),
        ({"a": 1, "b": 2}, ("a", "b"), (8, 9), {"a": 8, "b": 9}),
        ([1, 2], 0, 9, [9, 2]),
        ([1, 2, 3], slice(0, 2), [7, 8], [7, 8, 3]),
        ((1, 2), 0, 9, (9, 2)),
        ((1, 2), (0, 1), (8, 9), (8, 9)),
        (Pair(1, 2), "x", 9, Pair(9, 2)),
        (Pair(1, 2), 1, 9, Pair(1, 9)),
        (SimpleNamespace(a=1), "a", 9, SimpleNamespace(a=9)),
    ],
)
def test_set(batch, key, value, expected):
    result = batch_set(batch, key, value)
    assert result == expected and type(result) is type(expected)
    if not isinstance(batch, tuple):
        assert result is batch


def test_the_parts_may_come_as_one_tensor_or_array():
    batch = torch.arange(6).reshape(2, 3)
    assert batch_set(batch, [(0, 1), (1, 2)], torch.tensor([7, 8])).tolist() == [
        [0, 7, 2],
        [3, 4, 8],
    ]
    assert batch_set([1, 2, 3], [0, 2], np.array([7, 8])) == [7, 2, 8]


def test_set_with_functions():
    def put(batch, value):
        return {**batch, "z": value}

    assert batch_set({"a": 1}, (lambda batch: 0, put), 5) == {"a": 1, "z": 5}
    assert batch_set({"a": 1}, put, 5) == {"a": 1, "z": 5}


def test_what_does_not_go():
    with pytest.raises(ValueError, match="pair"):
        batch_get({}, [len, len, len])
    with pytest.raises(ValueError, match="2 keys and 1 values"):
        batch_set({}, ["a", "b"], [1])
    for value in (1, "xy", torch.tensor(1)):
        with pytest.raises(ValueError, match="2 keys and 1 values"):
            batch_set({}, ["a", "b"], value)
    with pytest.raises(RuntimeError, match="Unable to set 'z'"):
        batch_set(Pair(1, 2), "z", 3)
    with pytest.raises(RuntimeError, match="Unable to set 5"):
        batch_set((1, 2), 5, 3)
    with pytest.raises(RuntimeError, match="Unable to set 5"):
        batch_set([1, 2], 5, 3)
    with pytest.raises(RuntimeError, match="Unable to set"):
        batch_set(object(), "a", 3)
    with pytest.raises(KeyError):
        batch_get({"a": 1}, "b")
    with pytest.raises(KeyError):
        batch_get({"a": 1}, ("a", "b"))
