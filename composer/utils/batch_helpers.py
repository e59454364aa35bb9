"""Reading and replacing parts of a batch, whatever its type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any


def batch_get(batch: Any, key: Any) -> Any:
    """Returns the part of ``batch`` that ``key`` names.

    Args:
        batch: Any batch.
        key: A key or index, several of them (for a tuple of parts), an attribute's name, a callable
            that takes the batch, or a (getter, setter) pair of callables.

    Raises:
        ValueError: If a pair of callables does not have two of them.
    """
    if _is_callables(key):
        return _pair(key)[0](batch)
    if callable(key):
        return key(batch)
    try:
        make: Any = itemgetter
        return make(*key)(batch) if _is_multiple(key) else make(key)(batch)
    except (IndexError, KeyError, TypeError):
        if _is_multiple(key):
            parts = tuple(_get_one(batch, item) for item in key)
            return parts[0] if len(parts) == 1 else parts
        return _get_one(batch, key)


def batch_set(batch: Any, key: Any, value: Any) -> Any:
    """Replaces the part of ``batch`` that ``key`` names and returns the batch.

    Tuples and named tuples cannot be changed in place: use what is returned.

    Args:
        batch: Any batch.
        key: As for `batch_get`.
        value: The new part; as many values as keys if there are several keys.

    Raises:
        ValueError: If the number of keys and of values differ.
        RuntimeError: If the batch offers no way to replace that part.
    """
    if _is_callables(key):
        return _pair(key)[1](batch, value)
    if callable(key):
        return key(batch, value)
    if not _is_multiple(key):
        return _set_one(batch, key, value)
    try:  # not only sequences: the parts may come as one tensor or array
        num_values = 1 if isinstance(value, str) else len(value)
    except TypeError:
        num_values = 1
    if len(key) != num_values:
        raise ValueError(
            f"batch_set was given {len(key)} keys and {num_values} values; their numbers must agree"
        )
    for one_key, one_value in zip(key, value, strict=True):
        batch = _set_one(batch, one_key, one_value)
    return batch


def _is_multiple(key: Any) -> bool:
    return isinstance(key, Sequence) and not isinstance(key, (str, bytes))


def _is_callables(key: Any) -> bool:
    return _is_multiple(key) and len(key) > 0 and all(callable(item) for item in key)


def _pair(key: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    if len(key) != 2:
        raise ValueError(f"A key of callables is a (getter, setter) pair, not {len(key)} callables")
    return key[0], key[1]


def _get_one(batch: Any, key: Any) -> Any:
    try:
        return batch[key]
    except (IndexError, KeyError, TypeError):
        if isinstance(key, str) and hasattr(batch, key):
            return getattr(batch, key)
        raise


def _set_one(batch: Any, key: Any, value: Any) -> Any:
    if isinstance(batch, tuple):
        return _set_in_tuple(batch, key, value)
    if not isinstance(batch, Mapping) and isinstance(key, str) and hasattr(batch, key):
        setattr(batch, key, value)
        return batch
    target: Any = batch
    try:
        target[key] = value
    except (IndexError, TypeError) as error:
        raise RuntimeError(f"Unable to set {key!r} of a batch of type {type(batch)}") from error
    return batch


def _set_in_tuple(batch: tuple[Any, ...], key: Any, value: Any) -> tuple[Any, ...]:
    fields: tuple[str, ...] | None = getattr(batch, "_fields", None)
    if fields is not None and isinstance(key, str):
        if key not in fields:
            raise RuntimeError(f"Unable to set {key!r}: {type(batch)} has the fields {fields}")
        return batch._replace(**{key: value})  # type: ignore[attr-defined]  # a named tuple has it
    items = list(batch)
    try:
        items[key] = value
    except (IndexError, TypeError) as error:
        raise RuntimeError(f"Unable to set {key!r} of a tuple of {len(items)} items") from error
    return type(batch)(*items) if fields is not None else tuple(items)
