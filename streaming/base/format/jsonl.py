"""JSONL files: one JSON object a line, found by scanning for line ends once."""

import json
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.base.format.table import TableReader

_SCAN_BYTES = 1 << 24
_KINDS = {str: "text", bool: "true or false", int: "number", float: "number", list: "list"}
_ENCODINGS = {"text": "str", "list": "ndarray"}
_BLANK = np.frombuffer(b" \t\r\n", np.uint8)


def describe_lines(path: str) -> dict[str, Any]:
    """Number of rows, where each begins, and of what kind the first row's fields are."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        starts = line_starts(data)
        if not len(starts):
            raise ValueError(f"{path} has blank lines only. Remove it, or write it again.")
        row = _parse(_line(data, int(starts[0])), path, 1)
    kinds = {name: _kind_of(value) for name, value in row.items()}
    return {"samples": len(starts), "starts": starts, "kinds": kinds}


def line_starts(data: Any) -> NDArray[np.int64]:
    """Where the lines begin that are not blank.

    Lines end at a line feed only: the other characters that Unicode calls line ends may stand in a
    JSON text.
    """
    view = np.frombuffer(data, np.uint8)
    starts = [np.zeros(1, np.int64)]
    for begin in range(0, len(view), _SCAN_BYTES):
        is_end = view[begin : begin + _SCAN_BYTES] == ord("\n")
        starts.append(np.flatnonzero(is_end) + (begin + 1))
    found = np.concatenate(starts)
    found = found[found < len(view)]
    suspects = np.flatnonzero(np.isin(view[found], _BLANK))
    blank = [i for i in suspects.tolist() if not _line(data, int(found[i])).strip()]
    return np.delete(found, blank)


class JSONLReader(TableReader):
    """Random access to the rows of one JSONL file.

    Args:
        dirname: Folder of the dataset.
        split: Folder below it, if any.
        obj: The record of the index, with the options.
    """

    def __init__(self, dirname: str, split: str | None, obj: dict[str, Any]) -> None:
        self._kinds: dict[str, str] = obj["kinds"]
        self._starts: NDArray[np.int64] | None = obj.get("starts")
        present = {name: _ENCODINGS.get(kind, kind) for name, kind in self._kinds.items()}
        super().__init__(dirname, split, obj, present)

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: dict[str, Any]) -> "JSONLReader":
        """The reader for a record of the index."""
        return cls(dirname, split, obj)

    def attach(self, buffers: list[Any]) -> list[Any]:
        """Reads from these bytes."""
        if self._starts is None:  # The index was read from a file, which has no room for them.
            self._starts = line_starts(buffers[0])
            if len(self._starts) != self.samples:
                raise ValueError(
                    f"{self.raw_path(self.file_pairs[0])} has {len(self._starts)} rows, but the "
                    f"index says {self.samples}. Make the index again."
                )
        return super().attach(buffers)

    def read(self, idx: int) -> dict[str, Any]:
        """The row of this number."""
        data = self._get_buffers()[0]
        assert self._starts is not None
        try:
            row = json.loads(_line(data, int(self._starts[idx])))
        except ValueError:
            row = None
        if type(row) is not dict:
            path, number = self._position(idx)
            row = _parse(_line(data, int(self._starts[idx])), path, number)
        if missing := self._columns.missing(row):
            raise ValueError(
                f"{self.place(idx)} has no field {missing!r}, only {sorted(row)}. Mend the row, or "
                "name another in `columns`."
            )
        row = self._columns.select(row)
        for name, value in row.items():
            kind = self._kinds.get(self._columns.source(name))
            if value is not None and kind not in (None, "null", _kind_of(value)):
                raise ValueError(
                    f"{self.place(idx)}: field {name!r} is a {_kind_of(value)}, but was a {kind} "
                    "in the first row. Write it as one kind in all files, or leave it out by "
                    "`columns`."
                )
        return row

    def _position(self, idx: int) -> tuple[str, int]:
        """File and line of a row; lines are counted from 1, blank ones too."""
        assert self._starts is not None
        data, start = self._get_buffers()[0], int(self._starts[idx])
        before = (
            data[begin : min(begin + _SCAN_BYTES, start)] for begin in range(0, start, _SCAN_BYTES)
        )
        return self.raw_path(self.file_pairs[0]), sum(each.count(b"\n") for each in before) + 1

    def place(self, idx: int) -> str:
        """File and line of a row."""
        path, number = self._position(idx)
        return f"{path}, line {number}"


def _line(data: Any, start: int) -> bytes:
    stop = data.find(b"\n", start)
    return data[start : len(data) if stop < 0 else stop]


def _parse(line: bytes, path: str, number: int) -> dict[str, Any]:
    """The object of a line; says what is wrong with one that has none."""
    try:
        row = json.loads(line)
    except ValueError as error:
        problem = f"is no JSON ({error})"
    else:
        if isinstance(row, dict):
            return row
        problem = f"is a JSON {_kind_of(row)}, no object"
    raise ValueError(
        f"{path}, line {number} {problem}: {line[:80]!r}. Each line must be one JSON object such "
        'as {"text": "..."}, in UTF-8; mend or remove the line.'
    )


def _kind_of(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), "object")
