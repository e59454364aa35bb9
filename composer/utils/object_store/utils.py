"""Building a store from its scheme."""

from collections.abc import Callable
from typing import Any

from composer.utils.object_store.local_object_store import LocalObjectStore
from composer.utils.object_store.object_store import ObjectStore

__all__ = ["build_remote_backend"]

# A new kind of store is one line here and one in maybe_create_object_store_from_uri.
_BACKENDS: dict[str, Callable[..., ObjectStore]] = {"file": LocalObjectStore}


def build_remote_backend(remote_backend_name: str, backend_kwargs: dict[str, Any]) -> ObjectStore:
    """Returns a store of the kind that a URI scheme names.

    Args:
        remote_backend_name: The scheme, such as ``file``.
        backend_kwargs: The store's own arguments.

    Raises:
        ValueError: If there is no store for the scheme.
    """
    if remote_backend_name not in _BACKENDS:
        raise ValueError(
            f"There is no object store for the scheme {remote_backend_name!r}; available: "
            f"{', '.join(sorted(_BACKENDS))}.",
        )
    return _BACKENDS[remote_backend_name](**backend_kwargs)
