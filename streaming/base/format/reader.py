"""What all shard readers share: the files of a shard, their mapping into memory, their samples."""

import copy
import mmap
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from streaming.base.array import Array
from streaming.base.util import bytes_to_int


@dataclass(frozen=True)
class FileInfo:
    """What the index says about one file of a shard."""

    basename: str
    bytes: int
    hashes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FilePair:
    """One file of a shard: as it is read, and as it is stored if it is stored compressed."""

    raw: FileInfo
    zip: FileInfo | None


_PLACES = struct.Struct("<II")


class Reader(Array, ABC):
    """Random access to the samples of one shard.

    Args:
        dirname: Folder of the dataset.
        split: Folder below it, if any.
        compression: Algorithm of the compressed files, if any.
        hashes: Names of the checksums in the index.
        pairs: The files.
        samples: How many samples there are.
        size_limit: Upper bound of the raw size that the writer kept, if any.
    """

    counts_samples: ClassVar[bool] = False
    """Whether the last file begins with the number of samples and their places in the first."""

    reads_excerpts: ClassVar[bool] = False
    """Whether ``excerpt`` works, as it does by itself where samples are counted."""

    options: ClassVar[tuple[str, ...]] = ()
    """Settings of a stream that say what a sample of this format is."""

    def __init__(
        self,
        dirname: str,
        split: str | None,
        compression: str | None,
        hashes: list[str],
        pairs: list[FilePair],
        samples: int,
        size_limit: int | str | None,
    ) -> None:
        if samples < 0:
            raise ValueError(f"A shard cannot have {samples} samples.")
        if size_limit:
            size_limit = bytes_to_int(size_limit)
            if size_limit < 0:
                raise ValueError(
                    f"`size_limit` must be greater than zero, instead, found as {size_limit}."
                )
        self.dirname = dirname
        self.split = split or ""
        self.folder = os.path.join(dirname, self.split) if split else dirname
        self.compression = compression
        self.hashes = hashes
        self.file_pairs = pairs
        self.samples = samples
        self.size_limit = size_limit
        self.left_out = 0
        self.chosen = ""  # What a user chose of its samples, as a text.
        self._buffers: list[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buffers": None}  # Each process maps the files itself.

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.samples

    @property
    def is_open(self) -> bool:
        """Whether the files are mapped into memory."""
        return self._buffers is not None

    def raw_path(self, pair: FilePair) -> str:
        """Path of the file as it is read."""
        return os.path.join(self.folder, pair.raw.basename)

    def open(self) -> list[Any]:
        """Maps the files into memory, and returns them.

        Raises:
            FileNotFoundError: if one is missing.
            ValueError: if one has not the size that the index says.
        """
        return self.attach(
            [_map_file(self.raw_path(pair), pair.raw.bytes) for pair in self.file_pairs]
        )

    def attach(self, buffers: list[Any]) -> list[Any]:
        """Reads from these bytes, one buffer a file, instead of from mapped files.

        Returns:
            What samples are read from.
        """
        self._attached()
        if self.counts_samples:
            count = int.from_bytes(buffers[-1][:4], "little")
            if count != self.samples:
                raise ValueError(
                    f"Shard file {self.raw_path(self.file_pairs[-1])} says that it has {count} "
                    f"samples, but the index says {self.samples}: it is of another dataset. Delete "
                    "it to have it fetched again, or write the dataset again."
                )
        self._buffers = buffers
        return buffers

    def excerpt(self, idx: int, fetch: Callable[[str, int, int], bytes]) -> "Reader":
        """A shard that holds one sample of this one, read without the others.

        Args:
            idx: Number of the sample.
            fetch: Gives the bytes of a file, by its name, from one place up to another.

        Raises:
            ValueError: if the places are not within the file.
        """
        data, table = self.file_pairs[0].raw, self.file_pairs[-1].raw
        start, stop = _PLACES.unpack(fetch(table.basename, 4 * (1 + idx), 4 * (3 + idx)))
        if not start <= stop <= data.bytes:
            raise ValueError(
                f"Shard file {data.basename} of {self.folder} has sample {idx} at bytes {start} to "
                f"{stop} of {data.bytes}: it is of another dataset, or damaged at its source."
            )
        sample = fetch(data.basename, start, stop) if stop > start else b""
        first = 0 if table is not data else 4 + _PLACES.size
        places = struct.pack("<III", 1, first, first + len(sample))
        twin = copy.copy(self)
        twin.samples = 1
        twin.attach([places + sample] if table is data else [sample, places])
        return twin

    def _get_buffers(self) -> list[Any]:
        """The mapped files; another thread may close the shard at any time, but not these."""
        buffers = self._buffers
        return self.open() if buffers is None else buffers

    def _attached(self) -> None:
        """Hook for what is made ready when the shard is first opened."""

    def close(self) -> None:
        """Forgets the files; samples that were handed out keep what they need."""
        self._buffers = None

    def expect(self, columns: tuple[str, ...], vocab_size: int) -> None:
        """Says what a text loader takes of a sample, for formats that can heed or check it.

        Args:
            columns: Names, of which a sample must have one at least; none to take all.
            vocab_size: What token ids must be below.
        """

    def place(self, idx: int) -> str:
        """Where a sample stands, for messages."""
        return f"row {idx} of {self.raw_path(self.file_pairs[0])}"

    def validate(self, allow_unsafe_types: bool) -> None:
        """Refuses columns that could run code, unless they are allowed."""

    def get_raw_size(self) -> int:
        """Bytes of the files as they are read."""
        return sum(pair.raw.bytes for pair in self.file_pairs)

    def get_zip_size(self) -> int:
        """Bytes of the compressed files."""
        return sum(pair.zip.bytes for pair in self.file_pairs if pair.zip)

    def get_max_size(self) -> int:
        """Bytes on disk while the shard is being unpacked."""
        return self.get_raw_size() + self.get_zip_size()

    def get_item(self, idx: int) -> dict[str, Any]:
        """The sample of this number."""
        return self.read(idx)

    @abstractmethod
    def read(self, idx: int) -> dict[str, Any]:
        """The sample of this number, without looking whether there is one."""


def _map_file(path: str, size: int) -> Any:
    with open(path, "rb") as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            raise ValueError(
                f"Shard file {path} has {found} bytes, but the index says {size}: it is cut short "
                "or of another dataset. Delete it to have it fetched again, or write it again."
            )
        if size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
