"""Files and folders of commands that may be in an object store, while they are worked on here."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from composer.utils.file_helpers import (
    get_file,
    is_uri,
    maybe_create_object_store_from_uri,
    parse_uri,
)

__all__ = ["is_empty_in_store", "local_file", "uploaded_folder"]


@contextmanager
def local_file(path: str) -> Iterator[str]:
    """Gives the body a file's path on this machine; one from a store is fetched for as long."""
    if not is_uri(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy = str(Path(scratch, path.rpartition("/")[2]))
        get_file(path, copy)
        yield copy


def is_empty_in_store(address: str) -> bool:
    """Tells whether nothing is in a folder of a store."""
    store = maybe_create_object_store_from_uri(address)
    assert store is not None
    with store:
        return not store.list_objects(parse_uri(address)[2].rstrip("/") + "/")


@contextmanager
def uploaded_folder(address: str, last: Sequence[str]) -> Iterator[Path]:
    """Gives the body the path of a folder to make, which is uploaded if the body ends well.

    Args:
        address: The folder in a store.
        last: Names of files without which nobody takes the folder for whole: they are uploaded
            after the others, in this order.
    """
    store, name = maybe_create_object_store_from_uri(address), parse_uri(address)[2].rstrip("/")
    assert store is not None
    with store, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, Path(name).name or "folder")
        yield folder
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        for file in sorted(files, key=lambda file: last.index(file) if file in last else -1):
            store.upload_object("/".join(filter(None, (name, file))), folder / file)
