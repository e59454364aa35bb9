"""Reads MDS shards."""

import struct
from typing import Any

from streaming.base.format.mds.encodings import Encoding, get_encoding, is_mds_encoding_safe
from streaming.base.format.reader import FileInfo, FilePair, Reader


class MDSReader(Reader):
    """Random access to the samples of one MDS shard.

    Args:
        dirname: Folder of the dataset.
        split: Folder below it, if any.
        column_encodings: Encoding of each column.
        column_names: Name of each column, sorted.
        column_sizes: Bytes of each column, or None where they vary.
        compression: Algorithm of the compressed file, if any.
        hashes: Names of the checksums in the index.
        raw_data: The file as it is read.
        samples: How many samples there are.
        size_limit: Upper bound of the raw size that the writer kept, if any.
        zip_data: The compressed file, if any.
    """

    counts_samples = reads_excerpts = True

    def __init__(
        self,
        dirname: str,
        split: str | None,
        column_encodings: list[str],
        column_names: list[str],
        column_sizes: list[int | None],
        compression: str | None,
        hashes: list[str],
        raw_data: FileInfo,
        samples: int,
        size_limit: int | str | None,
        zip_data: FileInfo | None,
    ) -> None:
        pairs = [FilePair(raw_data, zip_data)]
        super().__init__(dirname, split, compression, hashes, pairs, samples, size_limit)
        self.column_encodings = column_encodings
        self.column_names = column_names
        self.column_sizes = column_sizes
        self._columns: list[tuple[str, Encoding, int | None]] | None = None
        self._sizes = struct.Struct(f"<{sum(size is None for size in column_sizes)}I")

    @classmethod
    def from_json(cls, dirname: str, split: str | None, obj: dict[str, Any]) -> "MDSReader":
        """The reader for a record of the index."""
        return cls(
            dirname=dirname,
            split=split,
            column_encodings=obj["column_encodings"],
            column_names=obj["column_names"],
            column_sizes=obj["column_sizes"],
            compression=obj["compression"],
            hashes=obj["hashes"],
            raw_data=FileInfo(**obj["raw_data"]),
            samples=obj["samples"],
            size_limit=obj["size_limit"],
            zip_data=FileInfo(**obj["zip_data"]) if obj["zip_data"] else None,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Structs do not pickle, and encodings may be made by functions that do not.
        return {**super().__getstate__(), "_columns": None, "_sizes": self._sizes.format}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._sizes = struct.Struct(state["_sizes"])

    def validate(self, allow_unsafe_types: bool) -> None:
        """Refuses unknown columns, and ``pkl`` unless it is allowed."""
        for name, encoding in zip(self.column_names, self.column_encodings, strict=True):
            if not allow_unsafe_types and not is_mds_encoding_safe(encoding):
                raise ValueError(
                    f"Column {name} contains an unsafe type: {encoding}. Reading it can run any "
                    "code that its author put there. If you trust the data, set "
                    "`allow_unsafe_types=True`."
                )

    def _attached(self) -> None:
        if self._columns is None:
            columns = []
            rows = zip(self.column_names, self.column_encodings, self.column_sizes, strict=True)
            for name, text, size in rows:
                encoding = get_encoding(text)
                if encoding is None:
                    raise ValueError(f"Column {name} has an unsupported encoding: {text}.")
                columns.append((name, encoding, size))
            self._columns = columns

    def read(self, idx: int) -> dict[str, Any]:
        """The sample of this number, without looking whether there is one."""
        buffer = self._get_buffers()[0]
        assert self._columns is not None
        start, stop = _OFFSETS.unpack_from(buffer, 4 * (1 + idx))
        if start >= stop:
            raise IndexError(
                f"Relative sample index {idx} is not present in the "
                f"{self.file_pairs[0].raw.basename} file."
            )
        sizes = iter(self._sizes.unpack_from(buffer, start))
        start += self._sizes.size
        sample = {}
        for name, encoding, size in self._columns:
            stop = start + (next(sizes) if size is None else size)
            sample[name] = encoding.decode_from(buffer, start, stop)
            start = stop
        return sample

    def get_sample_data(self, idx: int) -> bytes:
        """The bytes of a sample."""
        buffer = self._get_buffers()[0]
        start, stop = _OFFSETS.unpack_from(buffer, 4 * (1 + idx))
        return bytes(buffer[start:stop])


_OFFSETS = struct.Struct("<II")
