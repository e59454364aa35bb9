"""What every store of files must offer, wherever it keeps them."""

import abc
import os
from collections.abc import Callable
from typing import Any

__all__ = ["ObjectStore", "ObjectStoreTransientError"]


class ObjectStoreTransientError(RuntimeError):
    """Raised for trouble that may pass, such as a timeout, so that trying again is worth it."""


class ObjectStore(abc.ABC):  # noqa: B024 (a store may leave out what it cannot do)
    """A place that keeps files under names.

    A missing object is a FileNotFoundError, a local file in the way a FileExistsError, and trouble
    that may pass an ObjectStoreTransientError. A ``callback`` is called with the bytes done and the
    total.
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

    def list_objects(self, prefix: str | None) -> list[str]:
        """Returns the names of the objects that start with ``prefix``, all without one."""
        raise NotImplementedError(f"{type(self).__name__}.list_objects is not implemented")

    def close(self) -> None:  # noqa: B027 (most stores hold nothing open)
        """Lets go of connections."""

    def __enter__(self) -> "ObjectStore":
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.close()
