"""Reads text shards: a file of samples, and a binary table of where each begins."""

import struct
from typing import Any

from streaming.base.format.reader import FileInfo, FilePair, Reader

_OFFSETS = struct.Struct("<II")


class SplitReader(Reader):
    """Random access to the lines of one text shard."""

    counts_samples = reads_excerpts = True

    def __init__(
        self,
        dirname: str,
        split: str | None,
        obj: dict[str, Any],
    ) -> None:
        pairs = []
        for key in ("data", "meta"):
            packed = obj[f"zip_{key}"]
            pairs.append(
                FilePair(FileInfo(**obj[f"raw_{key}"]), FileInfo(**packed) if packed else None)
            )
        super().__init__(
            dirname,
            split,
            obj["compression"],
            obj["hashes"],
            pairs,
            obj["samples"],
            obj["size_limit"],
        )

    def get_sample_data(self, idx: int) -> bytes:
        """The line of a sample, with its end."""
        data, meta = self._get_buffers()
        start, stop = _OFFSETS.unpack_from(meta, 4 * (1 + idx))
        return bytes(data[start:stop])

    def read(self, idx: int) -> dict[str, Any]:
        """The sample of this number."""
        return self.decode_sample(self.get_sample_data(idx))

    def decode_sample(self, data: bytes) -> dict[str, Any]:
        """The sample of a line."""
        raise NotImplementedError
