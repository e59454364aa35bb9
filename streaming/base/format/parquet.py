"""Parquet files: rows out of row groups, of which the last used stay decoded."""

import logging
from bisect import bisect_right
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming.base.format.table import TableReader

log = logging.getLogger(__name__)

_CACHE_BYTES = 1 << 29
_LEAST_READS = 1000


def describe_row_groups(path: str) -> dict[str, Any]:
    """Number of rows, of each row group too, and the columns, from the footer of a file."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            groups = [
                file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)
            ]
            columns = {each.name: _encoding(each.type) for each in file.schema_arrow}
            return {"samples": sum(groups), "groups": groups, "columns": columns}
    except pyarrow.ArrowException as error:
        raise ValueError(
            f"{path} cannot be read as Parquet: {error}. It is cut short or of another format; "
            "write it again."
        ) from None


class ParquetReader(TableReader):
    """Random access to the rows of one Parquet file.

    A row costs its row group, once for all rows that are read while it is among the last used ones
    (512 MiB decoded, over all files of a process).

    Args:
        dirname: Folder of the dataset.
        split: Folder below it, if any.
        obj: The record of the index, with the options.
    """

    def __init__(self, dirname: str, split: str | None, obj: dict[str, Any]) -> None:
        super().__init__(dirname, split, obj, obj["columns"])
        self._key = object()  # Of this reader alone: another may take other columns.
        self._first_rows = np.cumsum([0, *obj["groups"]])[:-1].tolist()

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: dict[str, Any]) -> "ParquetReader":
        """The reader for a record of the index."""
        return cls(dirname, split, obj)

    def attach(self, buffers: list[Any]) -> list[Any]:
        """Reads from these bytes."""
        import pyarrow
        import pyarrow.parquet

        source = pyarrow.BufferReader(pyarrow.py_buffer(buffers[0]))
        return super().attach([pyarrow.parquet.ParquetFile(source)])

    def read(self, idx: int) -> dict[str, Any]:
        """The row of this number."""
        group = bisect_right(self._first_rows, idx) - 1
        columns = _groups.get((self._key, group))
        if columns is None:
            columns = self._decode(group)
        at = idx - self._first_rows[group]
        try:
            return {name: cell(at) for name, cell in columns.items()}
        except ValueError as error:
            raise ValueError(
                f"{self.place(idx)}: {error}. Mend the row, or leave the column out by `columns`."
            ) from error

    def _decode(self, group: int) -> dict[str, Any]:
        sources = self._columns.sources(self._present)
        file = self._get_buffers()[0]
        table = file.read_row_group(group, columns=list(sources.values())).combine_chunks()
        columns = {name: _cells(source, table.column(source)) for name, source in sources.items()}
        _groups.add((self._key, group), columns, table.nbytes)
        return columns


def _encoding(kind: Any) -> str:
    """What MDS calls a type of Arrow, or Arrow's own name."""
    import pyarrow.types

    if pyarrow.types.is_dictionary(kind):
        return _encoding(kind.value_type)
    if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
        return "str"
    if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        return "bytes"
    is_list = any(
        is_kind(kind)
        for is_kind in (
            pyarrow.types.is_list,
            pyarrow.types.is_large_list,
            pyarrow.types.is_fixed_size_list,
        )
    )
    if is_list and pyarrow.types.is_integer(kind.value_type):
        return f"ndarray:{kind.value_type}"
    return str(kind)


def _cells(name: str, column: Any) -> Any:
    """What gives the value of a row: lists of whole numbers as arrays, all else as it is."""
    # Texts of over 2 GiB stay several chunks; one chunk is faster to index than the column.
    array = column.chunk(0) if column.num_chunks == 1 else column
    if not _encoding(array.type).startswith("ndarray"):
        return lambda at: array[at].as_py()

    def numbers(at: int) -> NDArray[Any] | None:
        cell = array[at].values
        if cell is not None and cell.null_count:
            raise ValueError(f"a list of column {name!r} holds a null")
        return None if cell is None else cell.to_numpy()

    return numbers


class _Groups:
    """The decoded row groups that were used last, in this process."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[object, int], tuple[dict[str, Any], int]] = OrderedDict()
        self._bytes = self._reads = self._dropped = 0
        self._has_said = False

    def get(self, key: tuple[object, int]) -> dict[str, Any] | None:
        """The columns of a group, if it is here."""
        self._reads += 1
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def add(self, key: tuple[object, int], columns: dict[str, Any], size: int) -> None:
        """Keeps a group, and drops those not used for longest for it."""
        self._held[key] = columns, size
        self._bytes += size
        while self._bytes > _CACHE_BYTES and len(self._held) > 1:
            self._bytes -= self._held.popitem(last=False)[1][1]
            self._dropped += 1
        if self._dropped * 10 > self._reads > _LEAST_READS and not self._has_said:
            self._has_said = True
            log.warning(
                "Reading Parquet is slow: %d row groups were decoded and dropped for %d rows, "
                "since those in use together take more than %d bytes. Lower "
                "`shuffle_block_size` to the rows of a few row groups, choose "
                "fewer `columns`, or convert the data to MDS.",
                self._dropped,
                self._reads,
                _CACHE_BYTES,
            )


_groups = _Groups()
