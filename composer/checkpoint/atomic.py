"""Files that appear whole or not at all, whenever the process is killed; the link to the last.

A file is written under another name in the same folder, synced to the disk, and renamed; a rename
within a folder is atomic. The folder is synced too, because a rename that the disk does not know
yet is lost with the power.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from composer.utils.file_names import counters_in_name

__all__ = [
    "aside_of",
    "folder_aside",
    "is_leftover",
    "put_in_place",
    "refusal_of_disk",
    "remove_leftovers",
    "sync_folder",
    "update_latest",
    "written_aside",
]

# Hidden, so that no template and no shell glob takes an unfinished file for a finished one, and the
# same at each attempt, so that saving again replaces what a killed save left behind.
_PREFIX = "."
_SUFFIX = ".partial"
_REPLACED = ".replaced"


def aside_of(path: Path) -> Path:
    """Returns where ``path`` is written until it is whole."""
    return path.with_name(f"{_PREFIX}{path.name}{_SUFFIX}")


def is_leftover(path: str | os.PathLike[str]) -> bool:
    """Tells by its name whether a file or folder is one that a killed save left unfinished."""
    name = Path(path).name
    return name.startswith(_PREFIX) and name.endswith(_SUFFIX)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_leftovers(folder: str | os.PathLike[str], template: str | None = None) -> list[str]:
    """Deletes what killed saves left in ``folder`` and returns the paths.

    One rank calls it, while no other run saves there: the checkpoint saver does at FIT_START.

    Args:
        folder: Where to look.
        template: Delete only leftovers of files that this template can have made; None deletes all,
            in subfolders too.
    """
    root, pattern = Path(folder), f"{_PREFIX}*{_SUFFIX}"
    if template is None:
        found = root.rglob(pattern)
    else:
        found = root.glob("*/" * template.strip("/").count("/") + pattern)
    gone = [
        path for path in found if is_leftover(path) and _is_of(path.relative_to(root), template)
    ]
    for path in gone:
        _remove(path)
    return [str(path) for path in gone]


def _is_of(leftover: Path, template: str | None) -> bool:
    if template is None:
        return True
    final = leftover.with_name(leftover.name.removeprefix(_PREFIX).removesuffix(_SUFFIX))
    final = final.with_name(final.name.removesuffix(_REPLACED))
    return counters_in_name(final.as_posix(), template.lstrip("/")) is not None


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes the names in ``folder`` durable, where the file system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder may be writable but not readable
        return
    try:
        # Some network file systems refuse to sync a folder: there, a rename is durable by itself.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def written_aside(path: str | os.PathLike[str]) -> Iterator[str]:
    """Gives the body a path to write to, and makes what it wrote appear at ``path``, whole.

    Until the rename, ``path`` holds what it held before. If the body raises, the unfinished file is
    deleted and nothing else has changed.

    Args:
        path: The final name of the file. Its folder is made if missing.
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_of(final)
    _remove(aside)
    try:
        yield str(aside)
        _sync_file(aside)
        os.replace(aside, final)
    except BaseException as error:
        with contextlib.suppress(OSError):
            _remove(aside)
        refusal = refusal_of_disk(error, path)
        if refusal is None:
            raise
        raise refusal from error
    sync_folder(final.parent)


def refusal_of_disk(error: BaseException, path: str | os.PathLike[str]) -> OSError | None:
    """Returns what the disk said, with what was to be written, if that is behind an error.

    torch tells of a full disk as of a wrong position in a file, and streams do not name the file.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if cause is None or cause.errno is None or cause.filename is not None:
        return None
    return OSError(cause.errno, os.strerror(cause.errno), os.fspath(path))


def folder_aside(path: str | os.PathLike[str]) -> str:
    """Makes an empty folder in which ``path``, a folder, is written until it is whole."""
    aside = aside_of(Path(path))
    _remove(aside)
    aside.mkdir(parents=True)
    return str(aside)


def put_in_place(path: str | os.PathLike[str]) -> None:
    """Makes the folder that was written aside appear at ``path``, instead of what was there."""
    final = Path(path)
    aside = aside_of(final)
    sync_folder(aside)
    if final.exists():
        replaced = aside_of(final.with_name(final.name + _REPLACED))
        _remove(replaced)
        os.replace(final, replaced)
        os.replace(aside, final)
        _remove(replaced)
    else:
        os.replace(aside, final)
    sync_folder(final.parent)


def update_latest(
    checkpoint_path: str | os.PathLike[str], latest_path: str | os.PathLike[str]
) -> None:
    """Points the ``latest`` link at a finished checkpoint, atomically: there is never no link.

    Call it only once the checkpoint is whole, that is, after ``save_checkpoint`` has returned. The
    link is relative, so that the folder can be moved or mounted elsewhere.

    Args:
        checkpoint_path: The checkpoint's file, or a sharded checkpoint's folder; must exist.
        latest_path: Where the link stands, such as ``<folder>/latest-rank0.pt``.

    Raises:
        FileNotFoundError: If there is no checkpoint at ``checkpoint_path``.
        FileExistsError: If something other than a link stands at ``latest_path``.
    """
    latest = Path(latest_path)
    if not os.path.exists(checkpoint_path):
        raise FileNotFoundError(
            f"Cannot point {latest} at {checkpoint_path}: there is no such checkpoint."
        )
    if os.path.lexists(latest) and not latest.is_symlink():
        raise FileExistsError(
            f"{latest} is not a link, so it is not replaced by one that points at "
            f"{checkpoint_path}. Move it away, or choose another save_latest_filename.",
        )
    latest.parent.mkdir(parents=True, exist_ok=True)
    aside = aside_of(latest)
    _remove(aside)
    os.symlink(os.path.relpath(checkpoint_path, latest.parent), aside)
    os.replace(aside, latest)
    sync_folder(latest.parent)
