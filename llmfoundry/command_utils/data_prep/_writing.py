"""Output folders that are either whole or not there, whoever is killed on the way."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from composer.utils.file_helpers import (
    is_uri,
    list_remote_objects,
    maybe_create_object_store_from_uri,
    parse_uri,
)
from llmfoundry.utils.exceptions import OutputFolderNotEmptyError
from llmfoundry.utils.stores import local_file, uploaded_folder
from streaming.base.files import lock
from streaming.base.index import get_index_basename

__all__ = [
    "DONE_FILENAME",
    "REPORT_FILENAME",
    "check_output_folder",
    "finished_folder",
    "is_whole",
    "written_by",
]

PARTIAL_SUFFIX = ".unfinished"
REPLACED_SUFFIX = ".replaced"
DONE_FILENAME = ".text_to_mds_conversion_done"
REPORT_FILENAME = "data_prep_report.json"


def check_output_folder(
    output: str, arguments: dict[str, Any] | None = None, replaces: bool = False
) -> None:
    """Refuses a folder, here or in a store, that holds anything.

    Args:
        output: The folder or its address.
        arguments: What a call writes from; what the same call left in a store when it was killed
            while it uploaded does not count.
        replaces: What the same call wrote does not count either.

    Raises:
        OutputFolderNotEmptyError: The folder is not empty.
        ValueError: It cannot be replaced by another when that is whole.
    """
    if is_uri(output):
        is_free = not list_remote_objects(output.rstrip("/") + "/")
        may_hold_own = replaces or not is_whole(output)
    else:
        folder = Path(output).resolve()
        if os.path.ismount(folder) or folder == Path.cwd():
            raise ValueError(
                f"{output} is a mount point or the folder that this runs in: it cannot give its "
                "place to the finished folder. Name a folder inside it."
            )
        is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
        may_hold_own = replaces
    if is_free or (may_hold_own and arguments is not None and written_by(output) == arguments):
        return
    raise OutputFolderNotEmptyError(output)


def is_whole(output: str) -> bool:
    """Tells whether a folder, here or in a store, has its index, which is the last to come."""
    return bool(_read(output, get_index_basename()))


def written_by(output: str) -> Any:
    """The arguments of the call that wrote a folder, None if it has no report."""
    text = _read(output, REPORT_FILENAME)
    return json.loads(text)["arguments"] if text else None


def _read(output: str, name: str) -> str | None:
    try:
        with local_file(os.path.join(output, name)) as path:
            return Path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None


@contextmanager
def finished_folder(
    output: str, arguments: dict[str, Any] | None = None, replaces: bool = False
) -> Iterator[Path]:
    """Yields a folder to write to, which becomes ``output`` when the block ends well.

    A run that is killed leaves ``output`` untouched; what it left beside it is removed by the next
    run, which starts anew. To a store everything is uploaded at the end, the index last.

    Args:
        output: The folder or its address.
        arguments: As for :func:`check_output_folder`.
        replaces: As for :func:`check_output_folder`.

    Raises:
        OutputFolderNotEmptyError: The folder is not empty.
        OSError: What was written cannot take its place; the error names where it is.
        RuntimeError: Another call is writing it.
        ValueError: As for :func:`check_output_folder`.
    """
    check_output_folder(output, arguments, replaces)
    if is_uri(output):
        with uploaded_folder(output, last=[DONE_FILENAME, get_index_basename()]) as folder:
            folder.mkdir()
            yield folder
            if is_whole(output):
                _empty_index(output)
        return
    folder = Path(output).resolve()
    partial = folder.with_name(folder.name + PARTIAL_SUFFIX)
    partial.mkdir(parents=True, exist_ok=True)
    with _held(partial):
        try:
            for leftover in partial.iterdir():
                leftover.unlink()
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        _put_in_place(partial, folder, replaces)


def _put_in_place(partial: Path, folder: Path, replaces: bool) -> None:
    old = folder.with_name(folder.name + REPLACED_SUFFIX)
    try:
        if replaces and folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(folder, old)
        os.replace(partial, folder)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}: {partial} is whole but could not become {folder}. Rename it "
            "yourself: the next call to write there removes it",
        ) from error
    if replaces:
        shutil.rmtree(old, ignore_errors=True)


def _empty_index(output: str) -> None:
    """Makes a folder in a store no longer whole, before its shards are written over."""
    store, name = maybe_create_object_store_from_uri(output), parse_uri(output)[2].rstrip("/")
    assert store is not None
    with store, tempfile.NamedTemporaryFile() as empty:
        store.upload_object(f"{name}/{get_index_basename()}", empty.name)


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Keeps other processes from a folder; the system lets go of it when this one ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
            raise RuntimeError(
                f"Another process is writing {folder}. Wait for it, or name another output folder."
            )
        yield
    finally:
        os.close(handle)
