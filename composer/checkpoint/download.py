"""Fetches parts of checkpoints from wherever they are, once a node."""

import os
from collections.abc import Sequence

from composer.utils import dist
from composer.utils.file_helpers import (
    extract_path_from_symlink,
    get_file,
    is_uri,
    maybe_create_object_store_from_uri,
    parse_uri,
)
from composer.utils.object_store.object_store import ObjectStoreTransientError
from composer.utils.retrying import retry

__all__ = [
    "download_and_extract_symlink",
    "download_file",
    "download_folder",
    "download_monolithic_checkpoint",
]


def download_file(
    source_uri: str | os.PathLike[str],
    destination_path: str,
    node_ranks: Sequence[int] | None = None,
    num_attempts: int = 5,
) -> str:
    """Makes a file available at a local path of each node, and returns the path.

    All ranks call it; local rank 0 fetches, the others wait. ``.symlink`` text files are followed.

    Args:
        source_uri: A path, a web address or an address of an object store.
        destination_path: Where the file is to appear; what is there is replaced.
        node_ranks: The nodes that need the file; None for all.
        num_attempts: How often to try in all, if trouble may pass.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    folder = os.path.dirname(os.path.abspath(destination_path))
    os.makedirs(folder, exist_ok=True)
    is_wanted = node_ranks is None or dist.get_node_rank() in node_ranks
    with dist.busy_wait_for_local_rank_zero(folder):
        if is_wanted and dist.get_local_rank() == 0:
            fetch = retry(ObjectStoreTransientError, num_attempts=num_attempts)(get_file)
            fetch(os.fspath(source_uri), destination_path, overwrite=True)
    return destination_path


def download_and_extract_symlink(source_uri: str) -> str:
    """Returns the name that a ``.symlink`` text file, wherever it is, holds."""
    scheme, _bucket, name = parse_uri(source_uri)
    if scheme in ("", "http", "https"):
        return extract_path_from_symlink(source_uri)
    return extract_path_from_symlink(name, maybe_create_object_store_from_uri(source_uri))


def download_monolithic_checkpoint(
    source_uri: str | os.PathLike[str], destination_path: str, global_rank_zero_only: bool = True
) -> str:
    """Makes a one-file checkpoint available at a local path, and returns the path.

    Args:
        source_uri: A path, a web address or an address of an object store.
        destination_path: Where the file is to appear; what is there is replaced.
        global_rank_zero_only: Only on the node of rank 0.
    """
    node_ranks = [0] if global_rank_zero_only else None
    return download_file(source_uri, destination_path, node_ranks)


def download_folder(source_uri: str | os.PathLike[str], destination_path: str) -> str:
    """Makes a folder's files available on each node, and returns where; a local one stays there."""
    source_uri = os.fspath(source_uri)
    if not is_uri(source_uri):
        return source_uri
    store = maybe_create_object_store_from_uri(source_uri)
    assert store is not None
    prefix = parse_uri(source_uri)[2].rstrip("/") + "/"
    with store, dist.busy_wait_for_local_rank_zero(destination_path):
        if dist.get_local_rank() == 0:
            names = store.list_objects(prefix)
            if not names:
                raise FileNotFoundError(f"There are no objects at {source_uri}.")
            for name in names:
                get_file(name, os.path.join(destination_path, name.removeprefix(prefix)), store)
    return destination_path
