"""Stores of files beyond a plain path."""

from composer.utils.object_store.local_object_store import LocalObjectStore
from composer.utils.object_store.object_store import ObjectStore, ObjectStoreTransientError
from composer.utils.object_store.utils import build_remote_backend

__all__ = ["LocalObjectStore", "ObjectStore", "ObjectStoreTransientError", "build_remote_backend"]
