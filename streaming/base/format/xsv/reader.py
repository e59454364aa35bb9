"""Reads character-separated shards."""

from typing import Any

from streaming.base.format.split import SplitReader
from streaming.base.format.xsv.encodings import xsv_decode


class XSVReader(SplitReader):
    """Random access to the samples of one character-separated shard."""

    character: str | None = None
    """The separator, where the format says it."""

    def __init__(self, dirname: str, split: str | None, obj: dict[str, Any]) -> None:
        super().__init__(dirname, split, obj)
        self.column_names: list[str] = obj["column_names"]
        self.column_encodings: list[str] = obj["column_encodings"]
        self.newline: str = obj["newline"]
        self.separator: str = self.character or obj["separator"]

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: dict[str, Any]) -> "XSVReader":
        """The reader for a record of the index."""
        return cls(dirname, split, obj)

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        """The sample of a line."""
        values = data.decode("utf-8").removesuffix(self.newline).split(self.separator)
        columns = zip(self.column_names, self.column_encodings, values, strict=True)
        return {name: xsv_decode(encoding, value) for name, encoding, value in columns}


class CSVReader(XSVReader):
    """Random access to the samples of one shard with commas."""

    character = ","


class TSVReader(XSVReader):
    """Random access to the samples of one shard with tabs."""

    character = "\t"
