"""Writes character-separated shards."""

from typing import Any

from streaming.base.format.writer import SplitWriter
from streaming.base.format.xsv.encodings import is_xsv_encoding, xsv_encode


class XSVWriter(SplitWriter):
    """Writes samples as lines of values with a separator between them.

    There is no quoting: neither a name nor a value may hold the separator or the line end.

    Args:
        columns: Encoding by column name: ``str``, ``int`` or ``float``.
        separator: What stands between values.
        newline: What ends a line.
        out: Folder, or a pair (local folder, remote folder).
        keep_local: Whether the local folder stays when there is a remote one.
        compression: Algorithm for the shards, for example ``zstd:7``.
        hashes: Sorted names of the checksums to put into the index.
        size_limit: Upper bound of the samples' size in a shard, in bytes or as text.
        kwargs: ``exist_ok``, ``retry``, ``max_workers`` and ``progress_bar``, as of ``Writer``.
    """

    format = "xsv"

    def __init__(
        self,
        *,
        columns: dict[str, str],
        separator: str,
        newline: str = "\n",
        out: str | tuple[str, str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        self.separator = separator
        self.newline = newline
        for name, encoding in columns.items():
            assert is_xsv_encoding(encoding), f"Column {name}: unsupported encoding {encoding!r}."
            self._check_text(name, "name")
        self.column_names = sorted(columns)
        self.column_encodings = [columns[name] for name in self.column_names]
        super().__init__(
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )

    def _check_text(self, text: str, what: str) -> None:
        assert self.separator not in text and self.newline not in text, (
            f"The {what} {text!r} holds the separator {self.separator!r} or the line end "
            f"{self.newline!r}, and this format has no quoting: use MDSWriter or JSONWriter."
        )

    def get_config(self) -> dict[str, Any]:
        """What the index and the shards say about how they were written."""
        return {
            **super().get_config(),
            "column_names": self.column_names,
            "column_encodings": self.column_encodings,
            "newline": self.newline,
            "separator": self.separator,
        }

    def encode_start(self) -> bytes:
        """The line of column names."""
        return (self.separator.join(self.column_names) + self.newline).encode("utf-8")

    def encode_sample(self, sample: dict[str, Any]) -> bytes:
        """One line."""
        values = []
        for name, encoding in zip(self.column_names, self.column_encodings, strict=True):
            value = xsv_encode(encoding, sample[name])
            self._check_text(value, "value")
            values.append(value)
        return (self.separator.join(values) + self.newline).encode("utf-8")


class _FixedXSVWriter(XSVWriter):
    """A writer whose format says the separator."""

    character: str

    def __init__(
        self,
        *,
        columns: dict[str, str],
        newline: str = "\n",
        out: str | tuple[str, str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            columns=columns,
            separator=self.character,
            newline=newline,
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )

    def get_config(self) -> dict[str, Any]:
        """What the index and the shards say about how they were written."""
        config = super().get_config()
        del config["separator"]
        return config


class CSVWriter(_FixedXSVWriter):
    """Writes samples as lines of values with commas between them (see ``XSVWriter``)."""

    format = "csv"
    character = ","


class TSVWriter(_FixedXSVWriter):
    """Writes samples as lines of values with tabs between them (see ``XSVWriter``)."""

    format = "tsv"
    character = "\t"
