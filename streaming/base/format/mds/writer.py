"""Writes MDS shards."""

import json
from typing import Any

import numpy as np

from streaming.base.format.mds.encodings import Encoding, get_encoding, get_mds_encodings
from streaming.base.format.writer import RawFile, Writer


class MDSWriter(Writer):
    """Writes samples, dicts with a value for each column, as MDS shards.

    Args:
        columns: Encoding by column name.
        out: Folder, or a pair (local folder, remote folder).
        keep_local: Whether the local folder stays when there is a remote one.
        compression: Algorithm for the shards, for example ``zstd:7``.
        hashes: Sorted names of the checksums to put into the index.
        size_limit: Upper bound of a shard's size before compression, in bytes or as text; None or 0
            writes one shard.
        kwargs: ``exist_ok``, ``retry``, ``max_workers`` and ``progress_bar``, as of ``Writer``.
    """

    format = "mds"

    def __init__(
        self,
        *,
        columns: dict[str, str],
        out: str | tuple[str, str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        self.columns = columns
        self.column_names = sorted(columns)
        self.column_encodings = [columns[name] for name in self.column_names]
        self._encoders: list[tuple[str, Encoding]] = []
        for name, text in zip(self.column_names, self.column_encodings, strict=True):
            encoding = get_encoding(text)
            if encoding is None:
                raise TypeError(
                    f"MDSWriter passed column `{name}` with encoding `{text}` is unsupported. "
                    f"Supported encodings are {sorted(get_mds_encodings())}"
                )
            self._encoders.append((name, encoding))
        self.column_sizes = [encoding.size for _, encoding in self._encoders]
        super().__init__(
            out=out,
            keep_local=keep_local,
            compression=compression,
            hashes=hashes,
            size_limit=size_limit,
            extra_bytes_per_sample=4,
            **kwargs,
        )
        self.config_data = json.dumps(self.get_config(), sort_keys=True).encode("utf-8")
        self.extra_bytes_per_shard = 4 + 4 + len(self.config_data)
        self.new_shard_size = self.extra_bytes_per_shard

    def get_config(self) -> dict[str, Any]:
        """What the index and the shards say about how they were written."""
        return {
            **super().get_config(),
            "column_names": self.column_names,
            "column_encodings": self.column_encodings,
            "column_sizes": self.column_sizes,
        }

    def encode_sample(self, sample: dict[str, Any]) -> bytes:
        """The sizes of the columns that vary, then all columns."""
        sizes, body = [], []
        for name, encoding in self._encoders:
            data = self._encode(name, encoding, sample)
            if encoding.size is None:
                sizes.append(len(data))
            elif encoding.size != len(data):
                raise KeyError(
                    f"Unexpected data size; was {name} encoded as {self.columns[name]}, which "
                    f"takes {encoding.size} bytes, but got {len(data)}."
                )
            body.append(data)
        return b"".join([np.array(sizes, "<u4").tobytes(), *body])

    def _encode(self, name: str, encoding: Encoding, sample: dict[str, Any]) -> bytes:
        if name not in sample:
            raise KeyError(f"The sample has no column {name!r}, only {sorted(sample)}.")
        value = sample[name]
        if isinstance(value, bytes):
            return value
        try:
            return encoding.encode(value)
        except (AttributeError, TypeError, ValueError) as error:
            kind = ValueError if isinstance(error, ValueError) else type(error)
            raise kind(f"Column {name!r} ({self.columns[name]}): {error}") from error

    def encode_files(self, samples: list[bytes]) -> list[RawFile]:
        """Number of samples, where each begins, how it was written, the samples."""
        count = len(samples)
        start = 4 + 4 * (count + 1) + len(self.config_data)
        ends = start + np.cumsum([0, *map(len, samples)])
        if ends[-1] >= 2**32:
            raise ValueError(
                f"A shard has {ends[-1]} bytes, and 2**32 is the end: set `size_limit`."
            )
        head = np.array([count], "<u4").tobytes() + ends.astype("<u4").tobytes()
        return [RawFile("data", "", b"".join([head, self.config_data, *samples]))]
