"""Files and folders of commands that may be in an object store, while they are worked on here."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from composer.checkpoint.atomic import folder_aside, put_in_place
from composer.checkpoint.download import download_folder
from composer.utils.file_helpers import (
    get_file,
    is_uri,
    maybe_create_object_store_from_uri,
    parse_uri,
)
from llmfoundry.utils.exceptions import StoragePermissionError
from llmfoundry.utils.huggingface_hub_utils import split_hub_uri, upload_to_hub, weight_files

__all__ = [
    "fetched_folder",
    "is_empty_in_store",
    "local_file",
    "placed_folder",
    "uploaded_folder",
]


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


@contextmanager
def fetched_folder(path: str) -> Iterator[str]:
    """Gives the body a folder's path on this machine; one from a store is fetched for as long."""
    if not is_uri(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield download_folder(path, str(Path(scratch, Path(path).name)))


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

    Raises:
        FileExistsError: The store has weights in files that these do not replace.
    """
    store, name = maybe_create_object_store_from_uri(address), parse_uri(address)[2].rstrip("/")
    assert store is not None
    with store, tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, Path(name).name or "folder")
        yield folder
        files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        if weight_files(files):
            prefix = f"{name}/" if name else ""
            there = {each.removeprefix(prefix) for each in store.list_objects(prefix)}
            if foreign := sorted(weight_files(there) - set(files)):
                raise FileExistsError(
                    f"{address} has weights that would stay, and that transformers may load "
                    f"instead of the new ones: {foreign}. Remove them, or choose another folder."
                )
        for file in sorted(files, key=lambda file: last.index(file) if file in last else -1):
            store.upload_object("/".join(filter(None, (name, file))), folder / file)


@contextmanager
def placed_folder(target: str, last: Sequence[str], message: str) -> Iterator[Path]:
    """Gives the body an empty folder, which takes its place, whole, if the body ends well.

    Args:
        target: A path, where it replaces what is there; an address in a store; or one on the hub
            (``hf://owner/name[@branch][/folder]``).
        last: As for :func:`uploaded_folder`.
        message: What the commit on the hub says.

    Raises:
        StoragePermissionError: The store may not be written.
    """
    if target.startswith("hf://"):
        repo, revision, path = split_hub_uri(target)
        with tempfile.TemporaryDirectory() as scratch:
            yield Path(scratch)
            upload_to_hub(
                scratch, repo, path_in_repo=path, revision=revision, commit_message=message
            )
    elif is_uri(target):
        try:
            with uploaded_folder(target, last) as folder:
                folder.mkdir()
                yield folder
        except PermissionError as error:
            raise StoragePermissionError(str(error)) from error
    else:
        aside = folder_aside(target)
        try:
            yield Path(aside)
            put_in_place(target)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
