"""What a sample of the text loader holds, and where one that is not right stands."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.base.dataset import StreamingDataset

__all__ = ["check_columns", "columns_of", "place_of", "token_ids"]


def columns_of(shard: Any) -> dict[str, str]:
    """The columns of a shard's samples, and how each is written."""
    if hasattr(shard, "columns"):
        return dict(shard.columns)
    return dict(zip(shard.column_names, shard.column_encodings, strict=True))


def check_columns(dataset: StreamingDataset, token_encoding_type: str) -> None:
    """Refuses streams whose samples are neither texts nor token ids, before the first is read.

    Raises:
        RuntimeError: Samples have neither a ``text`` nor a ``tokens`` column.
        ValueError: The column holds something else, or ``token_encoding_type`` is for nothing.
    """
    has_bytes = False
    for stream, first in zip(dataset.streams, dataset.shard_offset_per_stream, strict=True):
        columns = columns_of(dataset.shards[first])
        if "text" not in columns and "tokens" not in columns:
            raise RuntimeError(
                f"The samples of {stream.folder} have the columns {sorted(columns)}; the text "
                "loader needs a text or a tokens column. Prepare the data again, or use the loader "
                "that it was prepared for."
            )
        name = "text" if "text" in columns else "tokens"
        encoding = columns[name]
        kind, _, dtype = encoding.partition(":")
        dtype = dtype.partition(":")[0]
        has_bytes = has_bytes or (name == "tokens" and kind == "bytes")
        has_bytes = has_bytes or "token_encoding_type" in dataset.shards[first].options
        if name == "text":
            fits = kind in ("str", "bytes")
        else:
            fits = kind == "bytes" or (
                kind == "ndarray" and (not dtype or np.dtype(dtype).kind in "iu")
            )
        if not fits:
            wanted = "str" if name == "text" else "ndarray:int32 (or another integer), or bytes"
            raise ValueError(
                f"Column {name!r} of {stream.folder} is written as {encoding!r}, and must be "
                f"{wanted}. Prepare the data again."
            )
    if token_encoding_type != "int64" and not has_bytes:
        raise ValueError(
            f"token_encoding_type={token_encoding_type!r} has no effect: it is the number type of "
            "tokens that were written as raw bytes, and here are none. Remove it."
        )


def token_ids(tokens: Any, token_encoding_type: str) -> NDArray[Any]:
    """Reads a row of token ids.

    Args:
        tokens: An array, a list, or raw bytes.
        token_encoding_type: Number type of raw bytes.

    Raises:
        ValueError: It is no row of integers.
    """
    if isinstance(tokens, list):
        tokens = np.asarray(tokens)
    if isinstance(tokens, bytes):
        if len(tokens) % np.dtype(token_encoding_type).itemsize:
            raise ValueError(
                f"column 'tokens' has {len(tokens)} bytes, which are no whole number of "
                f"{token_encoding_type}. Set token_encoding_type to the type that was written."
            )
        return np.frombuffer(tokens, token_encoding_type)
    if not isinstance(tokens, np.ndarray) or tokens.dtype.kind not in "iu" or tokens.ndim != 1:
        what = f"{tokens.dtype} of shape {tokens.shape}" if hasattr(tokens, "dtype") else tokens
        raise ValueError(
            f"column 'tokens' must be a row of integers, and is {what!r:.80}. Prepare the data "
            "again."
        )
    return tokens


def place_of(dataset: StreamingDataset, sample_id: int) -> str:
    """Where a sample is: its row in a file."""
    number, row = dataset.spanner[sample_id]
    return dataset.shards[number].place(row)
