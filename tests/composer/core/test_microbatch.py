"""Splitting batches into micro-batches, and counting their samples."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.core.data_spec import _split_list, _split_tensor
from composer.core.microbatch import count_samples, default_split_batch

sizes = st.integers(min_value=1, max_value=9)


def batch_of(kind, num_samples):
    x = torch.arange(num_samples * 3).reshape(num_samples, 3)
    y = list(range(num_samples))
    return {
        "tensor": x,
        "pair": (x, x[:, 0]),
        "nested": [x, [f"text {i}" for i in y]],
        "mapping": {"x": x, "y": y, "inner": {"z": x * 2}, "scale": 0.5, "name": "n", "off": None},
        "list": y,
        "with mapping": (x, {"a": x}),
    }[kind]


def joined(kind, parts):
    def cat(pieces):
        if isinstance(pieces[0], torch.Tensor):
            return torch.cat(list(pieces)).tolist()
        if isinstance(pieces[0], dict):
            return {key: cat([piece[key] for piece in pieces]) for key in pieces[0]}
        if isinstance(pieces[0], list):
            return [item for piece in pieces for item in piece]
        assert all(piece == pieces[0] for piece in pieces)  # told to every micro-batch
        return pieces[0]

    if isinstance(parts[0], tuple):
        return [cat(pieces) for pieces in zip(*parts, strict=True)]
    return cat(parts)


def as_lists(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: as_lists(item) for key, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


KINDS = ["tensor", "pair", "nested", "mapping", "list", "with mapping"]


@pytest.mark.parametrize("kind", KINDS)
@given(num_samples=st.integers(1, 20), size=sizes)
@pytest.mark.filterwarnings("ignore:Cannot split")
def test_the_parts_make_the_whole(kind, num_samples, size):
    batch = batch_of(kind, num_samples)
    parts = default_split_batch(batch, size)
    assert len(parts) == -(-num_samples // size)
    assert joined(kind, parts) == as_lists(batch)


@pytest.mark.parametrize("size, lengths", [(2, [2, 2, 1]), (5, [5])])
def test_b06_a_size_that_does_not_divide_the_batch(size, lengths):
    assert [len(part) for part in default_split_batch(torch.zeros(5, 1), size)] == lengths


def test_b06_a_size_beyond_the_batch():
    with pytest.warns(UserWarning, match="Cannot split tensor of length 5 into batches of size 9"):
        parts = default_split_batch(torch.zeros(5, 1), 9)
    assert [len(part) for part in parts] == [5]


def test_zero_dimensional_tensors_go_to_every_part():
    parts = default_split_batch({"x": torch.zeros(4), "temperature": torch.tensor(2.0)}, 2)
    assert [part["temperature"].item() for part in parts] == [2.0, 2.0]


def test_what_cannot_be_split_is_refused():
    for size in (0.5, 2.0, 0, -1):
        with pytest.raises(ValueError, match="whole number"):
            default_split_batch(torch.zeros(4), size)
    with pytest.raises(ValueError, match="'what'"):
        default_split_batch({"x": torch.zeros(4), "what": object()}, 2)
    with pytest.raises(NotImplementedError, match="split_batch"):
        default_split_batch(object(), 2)
    with pytest.raises(NotImplementedError, match="split_batch"):
        default_split_batch((torch.zeros(4), object()), 2)
    with pytest.raises(ValueError, match="same number"):
        default_split_batch({"x": torch.zeros(4), "y": torch.zeros(2)}, 2)
    with pytest.raises(ValueError, match="same number"):
        default_split_batch((torch.zeros(4), torch.zeros(2)), 2)
    with pytest.raises(ValueError, match="no tensor"):
        default_split_batch({"x": 3}, 2)


def test_the_pieces_keep_their_public_names():
    assert [len(part) for part in _split_tensor(torch.zeros(3), 2)] == [2, 1]
    assert _split_list([1, 2, 3], 2) == [[1, 2], [3]]


@pytest.mark.filterwarnings("ignore:Cannot split")
def test_a_batch_of_nothing_is_one_part():
    (part,) = default_split_batch({"x": torch.zeros(0, 2), "names": []}, 2)
    assert part["x"].shape == (0, 2) and part["names"] == []


@pytest.mark.parametrize("kind", ["tensor", "pair", "mapping"])
def test_counting(kind):
    batch = batch_of(kind, 7)
    if kind == "mapping":
        del batch["inner"]
    assert count_samples(batch) == 7


def test_counting_what_cannot_be_counted():
    with pytest.raises(NotImplementedError, match="multiple Tensors"):
        count_samples((torch.zeros(2), torch.zeros(3)))
    for batch in ("text", [1, 2], {"a": 1}, 3, [torch.zeros(())]):
        with pytest.raises(ValueError, match="Unable to determine"):
            count_samples(batch)
