"""Writes JSON shards."""

import json
from typing import Any

from streaming.base.format.json.encodings import is_json_encoded, is_json_encoding
from streaming.base.format.writer import SplitWriter


class JSONWriter(SplitWriter):
    """Writes samples as JSON objects, one a line.

    Args:
        columns: Encoding by column name: ``str``, ``int`` or ``float``.
        newline: What ends a line.
        out: Folder, or a pair (local folder, remote folder).
        keep_local: Whether the local folder stays when there is a remote one.
        compression: Algorithm for the shards, for example ``zstd:7``.
        hashes: Sorted names of the checksums to put into the index.
        size_limit: Upper bound of the samples' size in a shard, in bytes or as text.
        kwargs: ``exist_ok``, ``retry``, ``max_workers`` and ``progress_bar``, as of ``Writer``.
    """

    format = "json"

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
        for name, encoding in columns.items():
            assert is_json_encoding(encoding), f"Column {name}: unsupported encoding {encoding!r}."
        self.columns = columns
        self.newline = newline
        super().__init__(
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            **kwargs,
        )

    def get_config(self) -> dict[str, Any]:
        """What the index and the shards say about how they were written."""
        return {**super().get_config(), "columns": self.columns, "newline": self.newline}

    def encode_sample(self, sample: dict[str, Any]) -> bytes:
        """One line."""
        row = {}
        for name, encoding in self.columns.items():
            row[name] = sample[name]
            if not is_json_encoded(encoding, row[name]):
                raise AttributeError(
                    f"Column {name} should be of type {encoding}, but instead, found as "
                    f"{type(row[name])}"
                )
        return (json.dumps(row, sort_keys=True) + self.newline).encode("utf-8")
