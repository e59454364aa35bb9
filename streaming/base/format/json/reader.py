"""Reads JSON shards."""

import json
from typing import Any

from streaming.base.format.split import SplitReader


class JSONReader(SplitReader):
    """Random access to the samples of one JSON shard."""

    def __init__(self, dirname: str, split: str | None, obj: dict[str, Any]) -> None:
        super().__init__(dirname, split, obj)
        self.columns: dict[str, str] = obj["columns"]
        self.newline: str = obj["newline"]

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: dict[str, Any]) -> "JSONReader":
        """The reader for a record of the index."""
        return cls(dirname, split, obj)

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        """The sample of a line."""
        return json.loads(data)
