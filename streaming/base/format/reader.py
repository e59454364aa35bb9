"""What all shard readers share: the files of a shard, their mapping into memory, their samples."""

import mmap
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

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
        buffers = [_map_file(self.raw_path(pair), pair.raw.bytes) for pair in self.file_pairs]
        self.attach(buffers)
        return buffers

    def attach(self, buffers: list[Any]) -> None:
        """Reads from these bytes, one buffer a file, instead of from mapped files."""
        self._attached()
        self._buffers = buffers

    def _get_buffers(self) -> list[Any]:
        """The mapped files; another thread may close the shard at any time, but not these."""
        buffers = self._buffers
        return self.open() if buffers is None else buffers

    def _attached(self) -> None:
        """Hook for what is made ready when the shard is first opened."""

    def close(self) -> None:
        """Forgets the files; samples that were handed out keep what they need."""
        self._buffers = None

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
