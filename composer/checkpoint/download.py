"""Fetches parts of checkpoints from wherever they are, once a node."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence

from composer.core.logger_destination import LoggerDestination
from composer.utils import dist
from composer.utils.file_helpers import (
    extract_path_from_symlink,
    get_file,
    is_uri,
    maybe_create_object_store_from_uri,
    parse_uri,
)
from composer.utils.file_names import is_tar
from composer.utils.object_store.object_store import ObjectStore, ObjectStoreTransientError
from composer.utils.retrying import retry

__all__ = [
    "Source",
    "download_and_extract_symlink",
    "download_file",
    "download_folder",
    "download_monolithic_checkpoint",
    "download_object_or_file",
    "has_shards",
    "make_node_folder",
    "patiently",
    "shared_by_node",
    "without_text_link",
]

Source = ObjectStore | LoggerDestination | None
_NUM_ATTEMPTS = 5
patiently = retry(ObjectStoreTransientError, num_attempts=_NUM_ATTEMPTS)
"""Makes a function that asks a store try again after trouble that may pass."""


def download_file(
    source_uri: str | os.PathLike[str],
    destination_path: str,
    node_ranks: Sequence[int] | None = None,
    num_attempts: int = _NUM_ATTEMPTS,
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


@patiently
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
            names = patiently(store.list_objects)(prefix)
            if not names:
                raise FileNotFoundError(f"There are no objects at {source_uri}.")
            for name in names:
                target = os.path.join(destination_path, name.removeprefix(prefix))
                download_object_or_file(name, target, store)
    return destination_path


@patiently
def download_object_or_file(
    object_name: str, file_destination: str, object_store: Source, progress_bar: bool = False
) -> None:
    """Fetches a file from wherever it is; trouble that may pass is tried again.

    Args:
        object_name: A path, an address or, with ``object_store``, a name in it.
        file_destination: Where the file is to appear.
        object_store: A store, or a logger destination that can download.
        progress_bar: Show the progress.
    """
    get_file(object_name, file_destination, object_store, progress_bar=progress_bar)


def make_node_folder(prefix: str) -> str:
    """Makes a temporary folder on each node, and returns its path to all ranks of the node."""
    mine = tempfile.mkdtemp(prefix=prefix) if dist.get_local_rank() == 0 else None
    folders = dist.all_gather_object((dist.get_node_rank(), mine))
    return next(
        found for node, found in folders if node == dist.get_node_rank() and found is not None
    )


@contextlib.contextmanager
def shared_by_node() -> Iterator[str]:
    """Gives the body a temporary folder, the same one to all ranks of a node."""
    folder = make_node_folder("composer_checkpoint_")
    try:
        yield folder
        dist.barrier()  # the node's other ranks may still be reading
    finally:
        if dist.get_local_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)


def without_text_link(path: str) -> str:
    """Follows ``.symlink`` text files, as object stores hold them and as copies of them do."""
    for name in (path, path + ".symlink"):
        if name.endswith(".symlink") and os.path.isfile(name):
            with open(name) as file:
                return file.read().strip()
    return path


def has_shards(path: str, source: Source = None) -> tuple[str | None, Source]:
    """Tells whether a checkpoint is a folder of shards: its name and store, or (None, None).

    All ranks call it; rank 0 looks. Links to it, and ``.symlink`` text files, are followed.

    Args:
        path: A path, an address, or a name in ``source``.
        source: A store, or a logger that gives files back.
    """
    if source is None and is_uri(path) and not path.startswith(("http://", "https://")):
        source = maybe_create_object_store_from_uri(path)
        path = parse_uri(path)[2]
    name = dist.from_rank_zero(
        lambda: _local_folder(path) if source is None else _folder_in(source, path)
    )
    return name, None if name is None else source


def _local_folder(path: str) -> str | None:
    path = os.path.realpath(without_text_link(path))
    return path if os.path.isdir(path) else None


@patiently
def _folder_in(source: ObjectStore | LoggerDestination, name: str) -> str | None:
    if name.endswith(".symlink"):
        name = extract_path_from_symlink(name, source)
    name = name.rstrip("/")
    base = os.path.basename(name)
    if ".pt" in base or is_tar(base):
        return None
    index = f"{name}/.metadata"
    try:
        if isinstance(source, ObjectStore):
            source.get_object_size(index)
        else:
            with tempfile.TemporaryDirectory() as folder:
                get_file(index, os.path.join(folder, "index"), source)
    except FileNotFoundError:
        return None
    return name
