"""Rows that some object gives by number, such as a Hugging Face dataset, as a stream."""

import hashlib
import os
import tempfile
from typing import Any, ClassVar, Protocol

from streaming.base.format.columns import Columns
from streaming.base.format.plain import check_shards
from streaming.base.format.reader import Reader
from streaming.base.stream import Stream
from streaming.base.world import World

_ENCODINGS: dict[type, str] = {str: "str", bytes: "bytes", list: "ndarray"}


class RowSource(Protocol):
    """What gives rows by number."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def __getitem__(self, number: int, /) -> Any:
        """A row, a dict."""
        ...


class RowsReader(Reader):
    """The rows as one shard, which has no files.

    Args:
        rows: Gives its length, and a row (a dict) by its number.
        name: What to call it in messages.
        columns: The columns to take, as of :class:`streaming.Stream`.
        dirname: Folder for what is made of them, such as a plan of how they are packed.
    """

    options: ClassVar[tuple[str, ...]] = ("columns",)

    def __init__(self, rows: RowSource, name: str, columns: Any, dirname: str) -> None:
        super().__init__(dirname, None, None, [], [], len(rows), None)
        self._name = name
        self._columns = Columns(columns)
        self._present = list(getattr(rows, "column_names", None) or (rows[0] if len(rows) else ()))
        self._columns.check(self._present, name)
        self._rows = self._narrow(rows)
        # Rows that do not say what they are may be others under the same name tomorrow.
        content = getattr(rows, "_fingerprint", "")
        self.chosen = f"{content} {self._columns!r}" if content else ""

    @property
    def columns(self) -> dict[str, str]:
        """How each column is written, by the first row, in the words of MDS."""
        row = self.read(0)
        return {name: _ENCODINGS.get(type(row[name]), type(row[name]).__name__) for name in row}

    def _narrow(self, rows: Any) -> Any:
        """The rows without the columns that nobody wants, where they offer it."""
        sources = list(self._columns.sources(self._present).values())
        return rows.select_columns(sources) if hasattr(rows, "select_columns") else rows

    def expect(self, columns: tuple[str, ...], vocab_size: int) -> None:
        """Takes these columns only."""
        if columns:
            self._columns.keep(columns, self._present, self._name)
            self._rows = self._narrow(self._rows)

    def read(self, idx: int) -> dict[str, Any]:
        """The row of this number."""
        return self._columns.select(self._rows[idx])

    def place(self, idx: int) -> str:
        """Where a row stands, for messages."""
        return f"row {idx} of {self._name}"


class RowsStream(Stream):
    """A stream of rows that some object gives by number.

    They have the exact order, mixtures and resume of all streams. A ``datasets.Dataset`` is such an
    object: it maps its Arrow files into memory, which all workers share.

    Args:
        rows: Gives its length, and a row (a dict) by its number.
        name: What to call it in messages.
        proportion: Weight relative to the other streams.
        repeat: How often an epoch goes through it; may be a fraction.
        choose: How many samples an epoch takes from it.
        columns: The columns to take: a list, or a mapping from names in the sample to names in the
            rows.
    """

    def __init__(
        self,
        rows: RowSource,
        *,
        name: str = "rows",
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        columns: Any = None,
    ) -> None:
        key = getattr(rows, "_fingerprint", None) or f"{os.getpid()}-{id(rows)}"
        # A name may be longer than a file's may be.
        folder = hashlib.sha256(f"{name} {key}".encode()).hexdigest()[:32]
        super().__init__(
            local=os.path.join(tempfile.gettempdir(), f"streaming-{os.getuid()}", folder),
            proportion=proportion,
            repeat=repeat,
            choose=choose,
            columns=columns,
        )
        self._rows, self._name = rows, name

    def get_index_size(self) -> int:
        """Nothing: there is no index."""
        return 0

    def get_shards(
        self, world: World | None = None, allow_unsafe_types: bool = False
    ) -> list[Reader]:
        """The rows as one shard."""
        shards: list[Reader] = [RowsReader(self._rows, self._name, self.columns, self.folder)]
        check_shards(shards, self._own_options, self._name, False)
        return shards
