"""Small datasets of the formats that have no index of their own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from streaming.base.rows import RowsStream
from streaming.base.stream import Stream

ROW = 4
KINDS = ("bin", "npy", "parquet", "jsonl", "rows")


def write_numbers(folder: Path, kind: str, counts: tuple[int, ...] = (90, 75, 40)) -> Path:
    """Files of samples that count from 0 over all files, in the order of the files' names."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, count in enumerate(counts):
        ids = range(first, first + count)
        path = folder / f"part-{number}.{kind}"
        if kind in ("bin", "npy"):
            tokens = np.repeat(np.array(ids, np.uint16), ROW)
            np.save(path, tokens) if kind == "npy" else tokens.tofile(path)
        elif kind == "jsonl":
            path.write_text("".join(json.dumps({"id": each}) + "\n" for each in ids))
        elif kind == "parquet":
            table = pyarrow.table({"id": list(ids), "other": ["x"] * count})
            pyarrow.parquet.write_table(table, path, row_group_size=20)
        first += count
    return folder


def stream_of(folder: Path, kind: str, counts: tuple[int, ...], **weights: Any) -> Stream:
    """A stream of such a dataset; of ``rows`` there are no files."""
    if kind == "rows":
        return RowsStream([{"id": each} for each in range(sum(counts))], **weights)
    write_numbers(folder, kind, counts)
    if kind in ("bin", "npy"):
        dtype = "uint16" if kind == "bin" else None
        return Stream(local=str(folder), max_seq_len=ROW, token_encoding_type=dtype, **weights)
    return Stream(local=str(folder), **weights)


def numbers(batch: Any) -> list[int]:
    """The samples of a batch, whatever their format."""
    return (batch["tokens"][:, 0] if "tokens" in batch else batch["id"]).tolist()
