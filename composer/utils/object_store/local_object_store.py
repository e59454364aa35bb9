"""A folder as an object store: for file:// addresses, shared file systems and tests."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from composer.utils.object_store.object_store import ObjectStore, refuse_to_replace, whole_file

__all__ = ["LocalObjectStore"]

_CHUNK_BYTES = 1 << 22


class LocalObjectStore(ObjectStore):
    """Keeps objects as files below a folder.

    Args:
        root: The folder; object names are paths below it. Made at the first upload.
    """

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        self.root = Path(root).absolute()

    def _path(self, object_name: str) -> Path:
        path = Path(os.path.normpath(self.root / object_name.lstrip("/")))
        if not path.is_relative_to(self.root):
            raise ValueError(
                f"Object name {object_name!r} leads out of the store's folder {self.root}."
            )
        return path

    def _existing(self, object_name: str) -> Path:
        path = self._path(object_name)
        if not path.is_file():
            raise FileNotFoundError(f"Object {self.get_uri(object_name)} not found.")
        return path

    def get_uri(self, object_name: str) -> str:
        """Returns the object's ``file://`` address."""
        return self._path(object_name).as_uri()

    def upload_object(
        self,
        object_name: str,
        filename: str | os.PathLike[str],
        callback: Callable[[int, int], None] | None = None,
        **kwargs: Any,
    ) -> None:
        """Copies a file into the folder; it appears whole, and replaces what was there."""
        if kwargs:
            raise ValueError(f"LocalObjectStore.upload_object takes no {sorted(kwargs)}.")
        _copy(Path(filename), self._path(object_name), callback)

    def get_object_size(self, object_name: str) -> int:
        """Returns the file's size in bytes."""
        return self._existing(object_name).stat().st_size

    def download_object(
        self,
        object_name: str,
        filename: str | os.PathLike[str],
        overwrite: bool = False,
        callback: Callable[[int, int], None] | None = None,
    ) -> None:
        """Copies an object out of the folder."""
        source = self._existing(object_name)
        refuse_to_replace(filename, overwrite)
        _copy(source, Path(filename), callback)

    def list_objects(self, prefix: str | None = None) -> list[str]:
        """Returns the names below the folder that start with ``prefix``, sorted."""
        prefix = (prefix or "").lstrip("/")
        # Only the folder that the prefix names is walked: the store may be a whole file system.
        start = self._path(prefix.rpartition("/")[0])
        names = (
            Path(folder, name).relative_to(self.root).as_posix()
            for folder, _folders, files in os.walk(start)
            for name in files
        )
        return sorted(name for name in names if name.startswith(prefix))


def _copy(source: Path, target: Path, callback: Callable[[int, int], None] | None) -> None:
    total = source.stat().st_size
    with whole_file(target) as aside, open(source, "rb") as reading, open(aside, "wb") as writing:
        if callback is None:
            shutil.copyfileobj(reading, writing, _CHUNK_BYTES)
        else:
            while chunk := reading.read(_CHUNK_BYTES):
                writing.write(chunk)
                callback(writing.tell(), total)
