"""Clients of remote stores: obstore for s3, gs and az, any file system of fsspec for the rest."""

import abc
import contextlib
import importlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import timedelta
from typing import Any, BinaryIO, ClassVar, Literal, TypeVar

from composer.utils.object_store.object_store import ObjectStoreTransientError
from composer.utils.object_store.redaction import secrets_in, without_secrets

__all__ = ["Driver", "FsspecDriver", "ObstoreDriver", "built", "obstore_options"]

TResult = TypeVar("TResult")
Progress = Callable[[int, int], None]
Kind = Literal["missing", "forbidden", "passing", "other"]

_PART_BYTES = 1 << 24
_MOST_PARTS = 10_000  # S3 takes no more in one upload
_CONCURRENCY = 8
FIRST_PAUSE_SECONDS = 0.25


class Driver(abc.ABC):
    """What the rules need of a client library; keys are whole names in the bucket."""

    client: Any
    """The library's own object."""
    errors: tuple[type[Exception], ...]
    """What its calls raise for trouble with the store."""

    @abc.abstractmethod
    def kind(self, error: Exception) -> Kind:
        """Says what an error means."""

    @abc.abstractmethod
    def stat(self, key: str) -> tuple[int, str | None]:
        """Returns an object's size and, if there is one, the tag of its version."""

    @abc.abstractmethod
    def fetch(self, key: str, path: str, callback: Progress) -> int:
        """Writes an object into an empty file, and returns how long the store says it is."""

    @abc.abstractmethod
    def put(self, key: str, file: BinaryIO, size: int, callback: Progress, extra: Any) -> None:
        """Stores an open file."""

    @abc.abstractmethod
    def names(self, folder: str) -> Iterator[str]:
        """Yields the keys below a folder."""


class ObstoreDriver(Driver):
    """Reads and writes a bucket of s3, gs or az by obstore, large objects in parts side by side.

    Args:
        store: The obstore client to read with.
        writer: The one to write with, if it needs other headers.
        part_bytes: How long the parts are.
        single_bytes: Up to which size a file is uploaded in one request.
        concurrency: How many parts travel at a time; so many are in memory.
    """

    _used_by: ClassVar[int | None] = None

    def __init__(
        self,
        store: Any,
        writer: Any = None,
        part_bytes: int = _PART_BYTES,
        single_bytes: int | None = None,
        concurrency: int = _CONCURRENCY,
    ) -> None:
        import obstore
        import obstore.exceptions

        self._obstore = obstore
        self._exceptions = obstore.exceptions
        self.errors = (obstore.exceptions.BaseError, OSError)
        self.client = store
        self._writer = store if writer is None else writer
        self._part_bytes = part_bytes
        self._single_bytes = part_bytes if single_bytes is None else single_bytes
        self._concurrency = concurrency

    def kind(self, error: Exception) -> Kind:
        """Says what an error means, by its class or, where that says nothing, by its text."""
        known = self._exceptions
        if isinstance(error, FileNotFoundError):
            return "missing"
        if isinstance(error, (known.PermissionDeniedError, known.UnauthenticatedError)):
            return "forbidden"
        if isinstance(error, known.PreconditionError):
            return "passing"  # the object was replaced while it was read
        text = str(error).partition("\n\nDebug source")[0]
        found = re.search(r"status code: (\d{3})", text)
        status = int(found.group(1)) if found else None
        # Without credentials a cloud machine's own service is asked for some, in vain elsewhere.
        if "//169.254.169.254/" in text and (status is None or status < 500):
            return "forbidden"
        if status is not None:
            return _kind_of_status(status)
        return "passing" if "HTTP error" in text or "Content-Range" in text else "other"

    def stat(self, key: str) -> tuple[int, str | None]:
        """Asks for the object's head."""
        self._refuse_after_fork()
        head = self._obstore.head(self.client, key)
        return head["size"], head["e_tag"]

    def fetch(self, key: str, path: str, callback: Progress) -> int:
        """Fetches the parts side by side, all of one version of the object."""
        size, tag = self.stat(key)
        done, lock = 0, threading.Lock()

        def part(start: int) -> None:
            nonlocal done
            end = min(start + self._part_bytes, size)
            found = self._obstore.get(
                self.client, key, options={"range": (start, end), "if_match": tag}
            )
            data = found.bytes()
            if len(data) != end - start:
                raise ObjectStoreTransientError(
                    f"{key} gave {len(data)} of {end - start} bytes from byte {start} on."
                )
            with open(path, "r+b") as file:
                file.seek(start)
                file.write(data)
            with lock:
                done += len(data)
                callback(done, size)

        _side_by_side(part, range(0, size, self._part_bytes), self._concurrency)
        return size

    def put(self, key: str, file: BinaryIO, size: int, callback: Progress, extra: Any) -> None:
        """Uploads in one request, or in parts that are given up together if one fails."""
        self._refuse_after_fork()
        options = extra or {}
        if size <= self._single_bytes:
            self._obstore.put(self._writer, key, file.read(), use_multipart=False, **options)
            callback(size, size)
            return
        part_bytes = max(self._part_bytes, -(-size // _MOST_PARTS))

        def parts() -> Iterator[bytes]:
            while data := file.read(part_bytes):
                yield data
                callback(file.tell(), size)

        self._obstore.put(
            self._writer,
            key,
            parts(),
            use_multipart=True,
            chunk_size=part_bytes,
            max_concurrency=self._concurrency,
            **options,
        )

    def names(self, folder: str) -> Iterator[str]:
        """Yields the keys, which the store sends page by page."""
        self._refuse_after_fork()
        for page in self._obstore.list(self.client, folder or None):
            for head in page:
                yield head["path"]

    def _refuse_after_fork(self) -> None:
        """Raises in a process forked from one that used obstore: its threads are not there."""
        if ObstoreDriver._used_by not in (None, os.getpid()):
            raise RuntimeError(
                "An object store was used before this process was forked, and its threads did not "
                "come along. Start workers with multiprocessing's 'spawn' or 'forkserver'."
            )
        ObstoreDriver._used_by = os.getpid()


class FsspecDriver(Driver):
    """Reads and writes any file system of fsspec.

    Args:
        scheme: The name under which fsspec knows it.
        bucket: What stands in front of every key.
        options: Arguments of the file system.
    """

    def __init__(self, scheme: str, bucket: str, options: Mapping[str, Any]) -> None:
        import fsspec

        self.errors = (OSError,)
        self._final: tuple[type[Exception], ...] = ()
        if scheme == "hf":
            from huggingface_hub.errors import OfflineModeIsEnabled

            self.errors = (OSError, *_lost_connections())
            self._final = (OfflineModeIsEnabled,)
        self.client = fsspec.filesystem(scheme, skip_instance_cache=True, **options)
        self._bucket = bucket

    def kind(self, error: Exception) -> Kind:
        """Says what an error means, by its class and the status of the answer that it holds."""
        if isinstance(error, FileNotFoundError):
            return "missing"
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(status, int):
            return _kind_of_status(status)
        if isinstance(error, PermissionError):
            return "forbidden"
        if isinstance(error, self._final):
            return "other"
        lost = isinstance(error, (ConnectionError, TimeoutError)) or not isinstance(error, OSError)
        return "passing" if lost else "other"

    def stat(self, key: str) -> tuple[int, str | None]:
        """Asks for what the file system knows, past its cache."""
        self.client.invalidate_cache()
        found = self.client.info(self._path(key))
        if found["type"] != "file":
            raise FileNotFoundError(f"{key} is a folder.")
        return found["size"], None

    def fetch(self, key: str, path: str, callback: Progress) -> int:
        """Lets the file system write the file."""
        size, _tag = self.stat(key)
        # The callback is told of the end only: with one of its own the Hub's client goes slowly.
        self.client.get_file(self._path(key), path)
        callback(size, size)
        return size

    def put(self, key: str, file: BinaryIO, size: int, callback: Progress, extra: Any) -> None:
        """Lets the file system read the file."""
        del extra
        self.client.put_file(os.fspath(file.name), self._path(key))
        callback(size, size)

    def names(self, folder: str) -> Iterator[str]:
        """Yields the keys; a missing folder has none."""
        self.client.invalidate_cache()
        in_front = f"{self._bucket}/" if self._bucket else ""
        for path in self.client.find(self._path(folder)):
            yield path.lstrip("/").removeprefix(in_front)

    def _path(self, key: str) -> str:
        return f"{self._bucket}/{key}".strip("/")


def obstore_options(endpoint: str | None = None, num_tries: int = 8) -> dict[str, Any]:
    """Returns the arguments that all obstore clients are made with.

    Args:
        endpoint: The server's address; without TLS only if the address says so.
        num_tries: How often a request is tried in all, after pauses that grow up to 15 seconds
            and vary at random.
    """
    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=10),
        "read_timeout": timedelta(seconds=60),
        # Of a whole request. The default of 30 seconds would end a part on a slow line.
        "timeout": timedelta(minutes=15),
    }
    if endpoint is not None and endpoint.startswith("http://"):
        client["allow_http"] = True
    return {
        "client_options": client,
        "retry_config": {
            "max_retries": num_tries - 1,
            "retry_timeout": timedelta(minutes=3),
            "backoff": {
                "init_backoff": timedelta(seconds=FIRST_PAUSE_SECONDS),
                "max_backoff": timedelta(seconds=15),
                "base": 2,
            },
        },
    }


def built(make: Callable[..., TResult], *args: Any, **options: Any) -> TResult:
    """Makes an obstore client; an argument that it refuses is a ValueError without secrets."""
    from obstore.exceptions import BaseError

    try:
        return make(*args, **options)
    except (BaseError, ValueError) as error:
        message = str(error).partition("\n\nDebug source")[0]
    raise ValueError(without_secrets(message, secrets_in(options)))


def _kind_of_status(status: int) -> Kind:
    if status in (401, 403):
        return "forbidden"
    if status in (404, 410):
        return "missing"
    return "passing" if status in (408, 425, 429) or status >= 500 else "other"


def _side_by_side(call: Callable[[int], None], numbers: range, num_threads: int) -> None:
    """Calls in threads, and once one has failed starts no more."""
    if len(numbers) <= 1:
        for number in numbers:
            call(number)
        return
    with ThreadPoolExecutor(min(num_threads, len(numbers)), "object-store") as pool:
        futures = [pool.submit(call, number) for number in numbers]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _lost_connections() -> list[type[Exception]]:
    """Returns what the Hub's client may report a lost connection with; it has changed libraries."""
    found: list[type[Exception]] = []
    for name in ("httpx2", "httpx"):
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(name).TransportError)
    return found
