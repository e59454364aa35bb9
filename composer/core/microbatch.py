"""How a batch of any common shape is split into micro-batches, and counted."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from composer.core.types import Batch
from composer.utils.iter_helpers import ensure_tuple

_PRIMITIVES = (int, float, str, bool)


def default_split_batch(batch: Batch, microbatch_size: int | float) -> Sequence[Batch]:
    """Splits a batch into micro-batches of at most ``microbatch_size`` samples.

    Tensors are split along their first axis, lists of samples into slices, mappings, tuples and
    lists part by part. Plain numbers and strings in a mapping go into every micro-batch.

    Args:
        batch: A tensor, a mapping, or a list or tuple.
        microbatch_size: Samples in a micro-batch; the last one may be smaller.

    Raises:
        ValueError: If the size is not whole, or a part of a mapping cannot be split.
        NotImplementedError: If the batch is something else: give the DataSpec a ``split_batch``.
    """
    if isinstance(microbatch_size, float) or microbatch_size < 1:
        raise ValueError(
            f"A micro-batch of {microbatch_size} samples cannot be split off: give a whole number "
            "above 0, or a `split_batch` to the DataSpec"
        )
    if isinstance(batch, torch.Tensor):
        return _split_tensor(batch, microbatch_size)
    if isinstance(batch, Mapping):
        return _split_mapping(batch, microbatch_size)
    if isinstance(batch, (list, tuple)):
        return _split_parts(batch, microbatch_size)
    raise NotImplementedError(
        f"A batch of type {type(batch)} cannot be split into micro-batches; give the DataSpec a "
        "`split_batch` that knows how"
    )


def _warn_if_short(length: int, microbatch_size: int, kind: str) -> None:
    if length < microbatch_size:
        warnings.warn(
            f"Cannot split {kind} of length {length} into batches of size {microbatch_size}. As it "
            "is smaller, no splitting will be done. This may happen on the last batch of a dataset "
            "if it is a smaller size than the microbatch size.",
            stacklevel=4,
        )


def _split_tensor(t: torch.Tensor, microbatch_size: int) -> Sequence[torch.Tensor]:
    _warn_if_short(len(t), microbatch_size, "tensor")
    return t.split(microbatch_size, dim=0)


def _split_list(items: Sequence[Any], microbatch_size: int) -> Sequence[Any]:
    _warn_if_short(len(items), microbatch_size, "list")
    return [
        items[start : start + microbatch_size]
        for start in range(0, max(len(items), 1), microbatch_size)
    ]


def _split_mapping(batch: Mapping[Any, Any], microbatch_size: int) -> Sequence[dict[Any, Any]]:
    chunks: dict[Any, Sequence[Any]] = {}
    for key, value in batch.items():
        if isinstance(value, torch.Tensor):
            if value.ndim > 0:
                chunks[key] = _split_tensor(value, microbatch_size)
        elif isinstance(value, (list, tuple)):
            chunks[key] = _split_list(value, microbatch_size)
        elif isinstance(value, Mapping):
            chunks[key] = _split_mapping(value, microbatch_size)
        elif value is not None and not isinstance(value, _PRIMITIVES):
            raise ValueError(
                f"The value of {key!r} has type {type(value)}, which cannot be split into "
                "micro-batches; give the DataSpec a `split_batch` that knows how"
            )
    if not chunks:
        raise ValueError(
            f"A batch of {sorted(map(str, batch))} has no tensor or list to split; give the "
            "DataSpec a `split_batch`"
        )
    num_chunks = max(len(parts) for parts in chunks.values())
    uneven = {key: len(parts) for key, parts in chunks.items() if len(parts) != num_chunks}
    if uneven:
        raise ValueError(
            f"The parts of the batch split into different numbers of micro-batches: {uneven}, the "
            f"others {num_chunks}; all must have the same number of samples"
        )
    return [
        {key: chunks[key][index] if key in chunks else batch[key] for key in batch}
        for index in range(num_chunks)
    ]


def _split_parts(batch: Sequence[Any], microbatch_size: int) -> Sequence[Any]:
    first = batch[0] if batch else None
    if isinstance(first, _PRIMITIVES) and all(isinstance(item, type(first)) for item in batch):
        return _split_list(batch, microbatch_size)
    split: list[Sequence[Any]] = []
    for part in batch:
        if isinstance(part, torch.Tensor):
            split.append(_split_tensor(part, microbatch_size))
        elif isinstance(part, (list, tuple)):
            split.append(_split_list(part, microbatch_size))
        elif isinstance(part, Mapping):
            split.append(_split_mapping(part, microbatch_size))
        else:
            raise NotImplementedError(
                f"A batch with a part of type {type(part)} cannot be split into micro-batches; "
                "give the DataSpec a `split_batch` that knows how"
            )
    lengths = {len(parts) for parts in split}
    if len(lengths) > 1:
        raise ValueError(
            "The parts of the batch split into different numbers of micro-batches: "
            f"{[len(parts) for parts in split]}; all must have the same number of samples"
        )
    return list(zip(*split, strict=True))


def count_samples(batch: Batch) -> int:
    """Returns how many samples a batch of any common shape has.

    Raises:
        NotImplementedError: If its parts disagree.
        ValueError: If it cannot be told.
    """
    if isinstance(batch, torch.Tensor):
        return batch.shape[0]
    if isinstance(batch, (list, tuple)):
        sizes = []
        for part in batch:
            for item in (part,) if isinstance(part, torch.Tensor) else ensure_tuple(part):
                shape = getattr(item, "shape", ())
                if len(shape) == 0:
                    raise ValueError(_UNKNOWN_SIZE)
                sizes.append(shape[0])
    elif isinstance(batch, Mapping):
        sizes = [
            value.shape[0] if isinstance(value, torch.Tensor) else len(value)
            for value in batch.values()
            if isinstance(value, (torch.Tensor, list))
            and not (isinstance(value, torch.Tensor) and value.ndim == 0)
        ]
    else:
        sizes = []
    if len(set(sizes)) == 1:
        return int(sizes[0])
    if sizes:
        raise NotImplementedError(
            f"The batch has multiple Tensors, of different sizes along their first axis: {sizes}. "
            "Give the DataSpec a `get_num_samples_in_batch`"
        )
    raise ValueError(_UNKNOWN_SIZE)


def count_labelled_tokens(batch: Batch) -> int | None:
    """Counts the labels other than -100 of a language model's batch; None if it is none.

    It is one if its ``labels`` are integers of the shape of its ``input_ids``.
    """
    if not isinstance(batch, Mapping):
        return None
    ids, labels = batch.get("input_ids"), batch.get("labels")
    if not (isinstance(ids, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return None
    if labels.shape != ids.shape or labels.ndim < 2 or labels.is_floating_point():
        return None
    return int((labels != -100).sum())


_UNKNOWN_SIZE = (
    "Unable to determine the number of samples in the batch. Give the DataSpec a "
    "`get_num_samples_in_batch`"
)
