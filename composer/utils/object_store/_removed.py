"""Stores that Composer had and this project does not: who makes one is told what to use."""

from typing import Any, ClassVar

from composer.utils.object_store.object_store import NoSuchStoreError, ObjectStore

__all__ = ["RemovedObjectStore"]


class RemovedObjectStore(ObjectStore):
    """A store that can be imported and asked for with ``isinstance``, but not made."""

    advice: ClassVar[str]
    """What to use in its place."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NoSuchStoreError(f"{type(self).__name__} is not part of this project: {self.advice}.")
