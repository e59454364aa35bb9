"""Where the files of a dataset come from and go to: one small class per kind of address."""

import os
import shutil
from typing import BinaryIO, Protocol
from urllib.parse import unquote

from streaming.base.files import write_file
from streaming.base.remote import FSSPEC_SCHEMES, OBSTORE_SCHEMES, RemoteStore

_SCHEMES = ("file", *OBSTORE_SCHEMES, *FSSPEC_SCHEMES)
_LEFT_BEHIND = {
    "oci": "use the S3 compatible address of OCI, s3:// with S3_ENDPOINT_URL",
    "dbfs": "use the path of the mounted volume, such as /Volumes/... or /dbfs/..., or the address "
    "of the store behind it, such as s3:// or azure://",
    "alipan": "use the S3 compatible address of a store of Alibaba's, s3:// with S3_ENDPOINT_URL, "
    "or copy the shards to a local folder",
}


class Store(Protocol):
    """A folder of files somewhere, named relative to it."""

    url: str

    def fetch(self, name: str, out: BinaryIO, timeout: float) -> None:
        """Writes the content of a file to ``out``; FileNotFoundError if there is none."""
        ...

    def fetch_range(self, name: str, start: int, stop: int, timeout: float) -> bytes:
        """The bytes of a file from one place up to another."""
        ...

    def put(self, filename: str, name: str) -> None:
        """Stores a local file under a name."""
        ...

    def list(self) -> list[str]:
        """Names of all files."""
        ...


class FolderStore:
    """A folder of this machine, or of a network disk."""

    def __init__(self, path: str) -> None:
        self.url = self.path = path

    def fetch(self, name: str, out: BinaryIO, timeout: float) -> None:
        """Copies a file into ``out``."""
        with open(os.path.join(self.path, name), "rb") as file:
            shutil.copyfileobj(file, out, 1 << 20)

    def fetch_range(self, name: str, start: int, stop: int, timeout: float) -> bytes:
        """The bytes of a file from one place up to another.

        Raises:
            ValueError: if the file ends before.
        """
        path = os.path.join(self.path, name)
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read(stop - start)
            if len(data) != stop - start:
                raise ValueError(
                    f"{path} has {os.fstat(file.fileno()).st_size} bytes, but {start} to {stop} "
                    "are wanted: it is cut short or of another dataset. Restore it."
                )
        return data

    def put(self, filename: str, name: str) -> None:
        """Copies a local file here, so that no half of it is ever seen."""
        target = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(filename, "rb") as file:
            write_file(target, file.read())

    def list(self) -> list[str]:
        """Names of all files, sub-folders included."""
        found = []
        for folder, _, files in os.walk(self.path):
            found += [os.path.relpath(os.path.join(folder, name), self.path) for name in files]
        return sorted(found)


def scheme_of(url: str) -> str:
    """The part before ``://`` (or ``dbfs:``), or the empty text for a path."""
    if url.startswith("dbfs:"):
        return "dbfs"
    scheme, separator, _ = url.partition("://")
    return scheme if separator else ""


def is_remote(url: str) -> bool:
    """Whether this is an address on another machine, rather than a path or a ``file://`` URL."""
    return scheme_of(url) not in ("", "file")


def open_store(url: str) -> Store:
    """The store behind an address.

    Raises:
        ValueError: if there is no store for it.
    """
    scheme = scheme_of(url)
    if scheme == "":
        return FolderStore(url)
    if scheme == "file":
        return FolderStore(unquote(url.removeprefix("file://")))
    if scheme in _LEFT_BEHIND:
        raise ValueError(
            f"Unsupported remote path: {url}: {scheme}:// is not part of this project; "
            f"{_LEFT_BEHIND[scheme]}."
        )
    if scheme in _SCHEMES:
        return RemoteStore(url)
    raise ValueError(
        f"Unsupported remote path: {url}: {scheme}:// is not one of "
        f"{', '.join(f'{name}://' for name in _SCHEMES)} and a plain path."
    )
