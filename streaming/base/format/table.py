"""What readers of files with columns share: which of them a sample has."""

from abc import ABC
from collections.abc import Mapping
from typing import Any, ClassVar

from streaming.base.format.columns import Columns
from streaming.base.format.reader import FileInfo, FilePair, Reader


class TableReader(Reader, ABC):
    """Random access to the rows of one file, of which some columns are taken.

    Args:
        dirname: Folder of the dataset.
        split: Folder below it, if any.
        obj: The record of the index, with the options.
        present: The file's columns, and how each is written, in the words of MDS where it has one.
    """

    options: ClassVar[tuple[str, ...]] = ("columns",)

    def __init__(
        self, dirname: str, split: str | None, obj: dict[str, Any], present: Mapping[str, str]
    ) -> None:
        pairs = [FilePair(FileInfo(**obj["raw_data"]), None)]
        super().__init__(dirname, split, None, obj["hashes"], pairs, obj["samples"], None)
        self._present = present
        self._columns = Columns(obj["options"]["columns"])
        self._columns.check(present, self.raw_path(self.file_pairs[0]))
        self.chosen = repr(self._columns)

    @property
    def columns(self) -> dict[str, str]:
        """How each column of a sample is written."""
        return self._columns.encodings(self._present)

    def expect(self, columns: tuple[str, ...], vocab_size: int) -> None:
        """Takes these columns only."""
        if columns:
            self._columns.keep(columns, self._present, self.raw_path(self.file_pairs[0]))
