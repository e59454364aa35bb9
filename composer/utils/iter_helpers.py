"""Small shapes of iteration: anything to a tuple, mapping over collections, bytes as a file."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def ensure_tuple(x: Any) -> tuple[Any, ...]:
    """Returns ``x`` as a tuple: nothing for None, the items of a sequence, a dict's values.

    Strings and bytes count as one item.
    """
    if x is None:
        return ()
    if isinstance(x, (str, bytes, bytearray)):
        return (x,)
    if isinstance(x, Sequence):
        return tuple(x)
    if isinstance(x, dict):
        return tuple(x.values())
    return (x,)


def map_collection(collection: Any, map_fn: Callable[[Any], Any]) -> Any:
    """Applies ``map_fn`` to every item of a tuple, list or dict, or to the single item given.

    The kind of collection is kept; None stays None.
    """
    if collection is None:
        return None
    if isinstance(collection, tuple):
        mapped = [map_fn(item) for item in collection]
        return type(collection)(*mapped) if hasattr(collection, "_fields") else tuple(mapped)
    if isinstance(collection, list):
        return [map_fn(item) for item in collection]
    if isinstance(collection, dict):
        return {key: map_fn(value) for key, value in collection.items()}
    return map_fn(collection)


class IteratorFileStream(io.RawIOBase):
    """Reads an iterator of byte chunks as if it were a file.

    Args:
        iterator: Gives the chunks, in order.
    """

    def __init__(self, iterator: Iterator[bytes]) -> None:
        self.leftover: bytes | None = None
        self.iterator = iterator

    def readinto(self, b: Any) -> int:
        """Fills ``b`` from the next chunk; 0 at the end."""
        chunk = self.leftover
        # An empty chunk in the middle is not the end of the file, which readinto reports as 0.
        while not chunk:
            try:
                chunk = next(self.iterator)
            except StopIteration:
                return 0
        output, self.leftover = chunk[: len(b)], chunk[len(b) :]
        b[: len(output)] = output
        return len(output)

    def readable(self) -> bool:
        """Says that this stream can be read."""
        return True


def iterate_with_callback(
    iterator: Iterator[Any],
    total_len: int,
    callback: Callable[[int, int], None] | None = None,
) -> Iterator[Any]:
    """Passes on the chunks of ``iterator`` and reports ``(size so far, total_len)`` after each."""
    current_len = 0
    if callback is not None:
        callback(current_len, total_len)
    for chunk in iterator:
        current_len += len(chunk)
        yield chunk
        if callback is not None:
            callback(current_len, total_len)
