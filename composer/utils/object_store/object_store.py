"""What every store of files must offer, wherever it keeps them."""

import abc
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["NoSuchStoreError", "ObjectStore", "ObjectStoreTransientError"]


class ObjectStoreTransientError(RuntimeError):
    """Raised for trouble that may pass, such as a timeout, so that trying again is worth it."""


class NoSuchStoreError(ValueError, NotImplementedError):
    """Says, to who expects either kind, that there is no store for an address."""


class ObjectStore(abc.ABC):  # noqa: B024 (a store may leave out what it cannot do)
    """A place that keeps files under names.

    A missing object is a FileNotFoundError, a forbidden one a PermissionError, a local file in the
    way a FileExistsError, and trouble that may pass an ObjectStoreTransientError. A ``callback`` is
    called with the bytes done and the total.
    """

    def get_uri(self, object_name: str) -> str:
        """Returns the address of an object, which need not exist."""
        raise NotImplementedError(f"{type(self).__name__}.get_uri is not implemented")

    def upload_object(
        self,
        object_name: str,
        filename: str | os.PathLike[str],
        callback: Callable[[int, int], None] | None = None,
        **kwargs: Any,
    ) -> None:
        """Stores a local file as ``object_name``; it appears whole and replaces what was there."""
        raise NotImplementedError(f"{type(self).__name__}.upload_object is not implemented")

    def get_object_size(self, object_name: str) -> int:
        """Returns an object's size in bytes.

        Raises:
            FileNotFoundError: If there is no such object.
        """
        raise NotImplementedError(f"{type(self).__name__}.get_object_size is not implemented")

    def download_object(
        self,
        object_name: str,
        filename: str | os.PathLike[str],
        overwrite: bool = False,
        callback: Callable[[int, int], None] | None = None,
    ) -> None:
        """Copies an object to a local file, which appears whole.

        Raises:
            FileNotFoundError: If there is no such object.
            FileExistsError: If the file exists and ``overwrite`` is off.
        """
        raise NotImplementedError(f"{type(self).__name__}.download_object is not implemented")

    def list_objects(self, prefix: str | None = None) -> list[str]:
        """Returns the names of the objects that start with ``prefix``, all without one."""
        raise NotImplementedError(f"{type(self).__name__}.list_objects is not implemented")

    def close(self) -> None:  # noqa: B027 (most stores hold nothing open)
        """Lets go of connections."""

    def __enter__(self) -> "ObjectStore":
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()


def refuse_to_replace(filename: str | os.PathLike[str], overwrite: bool) -> None:
    """Raises FileExistsError if a download would replace a file that it may not."""
    if os.path.exists(filename) and not overwrite:
        raise FileExistsError(
            f"The file at {filename} already exists and overwrite is set to False."
        )


@contextlib.contextmanager
def whole_file(filename: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields an empty file beside ``filename`` that takes its place once the block has ended well.

    The folder is made. After an error nothing is left, and what was at ``filename`` still is.
    """
    target = Path(filename)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Threads and processes may fetch the same file at the same time.
    aside = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        aside.touch()
        yield aside
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
