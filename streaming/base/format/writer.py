"""What all shard writers share: cutting samples into shards, storing these, the index."""

import json
import os
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from streaming.base.compression import compress, get_compression_extension, is_compression
from streaming.base.files import write_file
from streaming.base.hashing import get_hash, is_hash
from streaming.base.index import INDEX_VERSION, get_index_basename, write_index
from streaming.base.storage.upload import CloudUploader
from streaming.base.util import bytes_to_int

_KWARGS = {"progress_bar": False, "max_workers": None, "retry": 2, "exist_ok": False}


@dataclass(frozen=True)
class RawFile:
    """One file of a shard before compression."""

    key: str
    """``data`` or ``meta``: which entries of the index describe it."""
    suffix: str
    data: bytes


W = TypeVar("W", bound="Writer")


class Writer(ABC):
    """Writes samples to a folder of shards and, when all is there, their index.

    A folder without an index is not a dataset: what was cut off by an error or a kill is never
    taken for a whole.

    Args:
        out: Folder, its address in a store such as ``s3://bucket/folder``, or a pair (local folder,
            remote folder).
        keep_local: Whether the local folder stays when there is a remote one.
        compression: Algorithm for the files, for example ``zstd:7``.
        hashes: Sorted names of the checksums to put into the index.
        size_limit: Upper bound of a shard's size before compression, in bytes or as text; None or 0
            writes one shard.
        extra_bytes_per_shard: Bytes that each shard has besides its samples.
        extra_bytes_per_sample: Bytes that each sample takes besides its own.
        kwargs: ``exist_ok`` (start with an empty folder by deleting what is there), ``retry`` (how
            often an upload is tried), ``max_workers`` (threads that compress and store) and
            ``progress_bar``.
    """

    format: str = ""

    def __init__(
        self,
        *,
        out: str | tuple[str, str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: list[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        extra_bytes_per_shard: int = 0,
        extra_bytes_per_sample: int = 0,
        **kwargs: Any,
    ) -> None:
        if unknown := sorted(kwargs.keys() - _KWARGS.keys()):
            raise ValueError(f"Invalid Writer argument(s): {unknown}. Known: {sorted(_KWARGS)}.")
        options: dict[str, Any] = {**_KWARGS, **kwargs}
        if not is_compression(compression or None):
            raise ValueError(f"Invalid compression: {compression}.")
        self.compression = compression or None
        self.hashes = list(hashes or [])
        self.size_limit = _parse_size_limit(size_limit)
        _check_hashes(self.hashes)

        self.keep_local = keep_local
        self.extra_bytes_per_shard = extra_bytes_per_shard
        self.extra_bytes_per_sample = extra_bytes_per_sample
        self.shards: list[dict[str, Any]] = []
        self.new_samples: list[bytes] = []
        self.new_shard_size = extra_bytes_per_shard
        self.cloud_writer = CloudUploader(out, keep_local, options["retry"], options["exist_ok"])
        self.local, self.remote = self.cloud_writer.local, self.cloud_writer.remote
        self._workers = options["max_workers"] or min(4, os.cpu_count() or 1)
        self.executor = ThreadPoolExecutor(self._workers, f"{self.format}-writer")
        self._pending: list[Future[dict[str, Any]]] = []
        self._bar = _progress_bar(self.local) if options["progress_bar"] else None
        self._state = "open"

    @abstractmethod
    def encode_sample(self, sample: dict[str, Any]) -> bytes:
        """Bytes of one sample."""

    @abstractmethod
    def encode_files(self, samples: list[bytes]) -> list[RawFile]:
        """The files of a shard that holds these samples."""

    def get_config(self) -> dict[str, Any]:
        """What the index and the shards say about how they were written."""
        return {
            "version": INDEX_VERSION,
            "format": self.format,
            "compression": self.compression,
            "hashes": self.hashes,
            "size_limit": self.size_limit,
        }

    def write(self, sample: dict[str, Any]) -> None:
        """Adds a sample; a shard is stored when the sample would not fit any more."""
        if self._state != "open":
            raise RuntimeError(f"Cannot write to {self.local}: the writer is {self._state}.")
        self._collect(wait=False)
        encoded = self.encode_sample(sample)
        size = len(encoded) + self.extra_bytes_per_sample
        # A sample larger than the limit gets a shard of its own; there are no empty shards.
        if self.size_limit and self.size_limit < self.new_shard_size + size and self.new_samples:
            self.flush_shard()
        self.new_samples.append(encoded)
        self.new_shard_size += size

    def flush_shard(self) -> None:
        """Stores the samples so far as a shard, in the background."""
        number, files = len(self._pending), self.encode_files(self.new_samples)
        count = len(self.new_samples)
        self.new_samples, self.new_shard_size = [], self.extra_bytes_per_shard
        if number >= 2 * self._workers:
            # Bounds the memory: at most this many shards wait for the disk.
            self._pending[number - 2 * self._workers].result()
        self._pending.append(self.executor.submit(self._store_shard, number, count, files))

    def _store_shard(self, number: int, count: int, files: list[RawFile]) -> dict[str, Any]:
        """Compresses, hashes and stores the files of a shard; returns its record for the index."""
        record: dict[str, Any] = {"samples": count, **self.get_config()}
        for file in files:
            name = f"shard.{number:05}.{self.format}{file.suffix}"
            record[f"raw_{file.key}"] = self._describe(name, file.data)
            record[f"zip_{file.key}"] = None
            data = file.data
            if self.compression:
                data = compress(self.compression, data)
                name = f"{name}.{get_compression_extension(self.compression)}"
                record[f"zip_{file.key}"] = self._describe(name, data)
            write_file(os.path.join(self.local, name), data)
            self.cloud_writer.upload_file(name)
            if self._bar is not None:
                self._bar.update(len(data))
        return record

    def _describe(self, basename: str, data: bytes) -> dict[str, Any]:
        hashes = {algo: get_hash(algo, data) for algo in self.hashes}
        return {"basename": basename, "bytes": len(data), "hashes": hashes}

    def _collect(self, wait: bool) -> None:
        """Takes over what the background has finished, and raises what went wrong there."""
        while len(self.shards) < len(self._pending):
            job = self._pending[len(self.shards)]
            if not wait and not job.done():
                return
            try:
                self.shards.append(job.result())
            except BaseException:
                self._abort()
                raise

    def finish(self) -> None:
        """Stores the last shard and, after everything else, the index. A second call is nothing."""
        if self._state == "finished":
            return
        if self._state != "open":
            raise RuntimeError(f"Cannot finish {self.local}: the writer is {self._state}.")
        if self.new_samples:
            self.flush_shard()
        self._collect(wait=True)
        self.executor.shutdown()
        write_index(self.local, self.shards)
        self.cloud_writer.upload_file(get_index_basename())
        self.cloud_writer.clear_local()
        self._close_bar()
        self._state = "finished"

    def _abort(self) -> None:
        """Stops without an index, so that nobody takes the folder for a dataset."""
        self._state = "stopped after an error"
        self.executor.shutdown(cancel_futures=True)
        self._close_bar()

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __enter__(self: W) -> W:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.finish()
        elif self._state == "open":
            self._abort()


def _progress_bar(local: str) -> Any:
    from tqdm.auto import tqdm

    return tqdm(desc=f"Writing {local}", unit="B", unit_scale=True)


def _parse_size_limit(size_limit: int | str | None) -> int | None:
    if not size_limit:
        return None if size_limit is None else 0
    limit = bytes_to_int(size_limit)
    if limit < 0:
        raise ValueError(f"`size_limit` must be greater than zero, instead, found as {limit}.")
    if limit >= 2**32:
        raise ValueError(f"`size_limit` must be less than 2**32, instead, found as {limit}.")
    return limit


def _check_hashes(hashes: list[str]) -> None:
    if list(hashes) != sorted(set(hashes)):
        raise ValueError("Hashes must be unique and in sorted order.")
    for algo in hashes:
        if not is_hash(algo):
            raise ValueError(f"Invalid hash: {algo}.")


class SplitWriter(Writer, ABC):
    """A writer of text shards: one file of samples and one that says where each begins."""

    def encode_start(self) -> bytes:
        """What stands before the first sample."""
        return b""

    def encode_files(self, samples: list[bytes]) -> list[RawFile]:
        """The samples' text, and the binary table of their places."""
        start = self.encode_start()
        data = b"".join([start, *samples])
        ends = np.cumsum([len(start), *map(len, samples)])
        if ends[-1] >= 2**32:
            raise ValueError(
                f"A shard has {ends[-1]} bytes, and 2**32 is the end: set `size_limit`."
            )
        config = json.dumps(self.get_config(), sort_keys=True).encode("utf-8")
        table = np.uint32(len(samples)).tobytes() + ends.astype("<u4").tobytes()
        return [RawFile("data", "", data), RawFile("meta", ".meta", table + config)]
