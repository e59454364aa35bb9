"""How much of each stream an epoch takes, from what users say in three ways."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Weighted(Protocol):
    """A stream with at most one weight, and after resolution all three."""

    asked: dict[str, float | int | None]
    proportion: float | None
    repeat: float | None
    choose: int | None


def check_weights(
    proportion: float | None, repeat: float | None, choose: int | None
) -> dict[str, float | int | None]:
    """The weights that a user gave, as a table.

    Raises:
        ValueError: if there is more than one, or one is negative.
    """
    asked = {"proportion": proportion, "repeat": repeat, "choose": choose}
    given = {name: value for name, value in asked.items() if value is not None}
    if len(given) > 1:
        raise ValueError(
            f"At most one of `proportion`, `repeat` and `choose` may be given: {given}."
        )
    for name, value in given.items():
        if value < 0:
            raise ValueError(f"`{name}` must be non-negative, but got {value}.")
    return asked


def validate_weights(streams: Sequence[Weighted]) -> tuple[bool, bool]:
    """Whether streams are weighted relatively, and whether no weight is given at all.

    Raises:
        ValueError: if some are relative and some are not.
    """
    relative = [stream.asked["proportion"] is not None for stream in streams]
    if len(set(relative)) > 1:
        odd = relative.index(not relative[0])
        raise ValueError(
            "Relative (`proportion`) and absolute (`repeat`, `choose`, none) stream weights are "
            f"incompatible with each other (error in stream {odd}): give every stream a "
            "proportion, or none."
        )
    unspecified = all(value is None for stream in streams for value in stream.asked.values())
    return relative[0], unspecified


def apply_weights(
    streams: Sequence[Weighted],
    samples_per_stream: Sequence[int],
    epoch_size: int | None,
    seed: int,
) -> int:
    """Gives every stream its proportion, repeat and choose; returns the size of an epoch.

    Args:
        streams: The streams; their three weights are set.
        samples_per_stream: Samples of each.
        epoch_size: Samples of an epoch, if the user says.
        seed: Decides which streams get the samples that rounding leaves over.
    """
    if epoch_size is not None and epoch_size < 0:
        raise ValueError(f"Epoch size cannot be negative, but got {epoch_size}.")
    is_relative, is_unspecified = validate_weights(streams)
    sizes = np.asarray(samples_per_stream, np.int64)
    if is_relative or (is_unspecified and epoch_size):
        if is_relative:
            parts = np.array([stream.asked["proportion"] for stream in streams], np.float64)
        else:
            parts = sizes.astype(np.float64)
        total = epoch_size or int(sizes.sum())
        chosen = _share_out(parts, total, seed)
    else:
        if epoch_size:
            raise ValueError(
                "Only provide `choose` when weighting streams relatively: with `repeat` or "
                f"`choose` the streams say how long an epoch is, and `epoch_size` is {epoch_size}."
            )
        chosen = np.array([_absolute(s, int(n)) for s, n in zip(streams, sizes, strict=True)])
        total = int(chosen.sum())
    if total == 0:
        raise ValueError("An epoch has no samples: all streams are empty or weighted with 0.")
    for stream, size, choose in zip(streams, sizes.tolist(), chosen.tolist(), strict=True):
        stream.proportion = choose / total
        stream.repeat = choose / size if size else 0.0
        stream.choose = choose
        if choose and not size:
            raise ValueError(f"Cannot choose {choose} samples from an empty stream.")
    return total


def _share_out(parts: np.ndarray, total: int, seed: int) -> np.ndarray:
    if parts.sum() == 0:
        raise ValueError("Stream proportions add up to 0.")
    chosen = (total * (parts / parts.sum())).astype(np.int64)
    missing = total - int(chosen.sum())
    lucky = np.random.default_rng(seed).choice(len(parts), missing, replace=False)
    chosen[lucky] += 1
    return chosen


def _absolute(stream: Weighted, size: int) -> int:
    repeat, choose = stream.asked["repeat"], stream.asked["choose"]
    if repeat is not None:
        return int(repeat * size)
    return size if choose is None else int(choose)
