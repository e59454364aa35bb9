"""Checkpoints copied to an object store while training goes on; each pointer after its payload."""

import contextlib
import logging
import os
import posixpath
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils import dist
from composer.utils.file_helpers import create_symlink_file, parse_uri
from composer.utils.remote_uploader import RemoteFilesExistingCheckStatus, RemoteUploader

__all__ = ["SECONDS_FOR_OTHERS_AT_CLOSE", "CheckpointUploadCallback", "upload_file"]

log = logging.getLogger(__name__)

# A run that ends well has waited before. When others may be dead, nobody waits for them for long.
SECONDS_FOR_OTHERS_AT_CLOSE = 60.0


@dataclass(frozen=True)
class _SymlinkTask:
    """A pointer that waits for what it points at."""

    check: Future[RemoteFilesExistingCheckStatus]
    text: str | None
    remote_name: str | None
    index: tuple[str, bytes] | None = None
    """Name and content of an index that must not be there before the files that it leads to."""


class CheckpointUploadCallback(Callback):
    """Watches uploads of checkpoints, and moves the pointer once all that it points at is there.

    A failed upload, of whichever rank, ends the run at the next batch; the pointer stays.

    Args:
        remote_uploader: Uploads the files.
        upload_timeout_in_seconds: How long to wait for the uploads of a checkpoint at most.
    """

    def __init__(
        self, remote_uploader: RemoteUploader, upload_timeout_in_seconds: float = 3600
    ) -> None:
        self.remote_uploader = remote_uploader
        self.upload_timeout_in_seconds = upload_timeout_in_seconds
        self.rank_saves_symlinks = dist.get_global_rank() == 0
        self.symlink_upload_tasks: list[_SymlinkTask] = []
        self.wait_before_next_try_in_seconds = 30.0

    def add_symlink_upload_task(
        self,
        remote_file_names: Sequence[str],
        symlink_file_name: str | None = None,
        symlink_remote_file_name: str | None = None,
        index: tuple[str, str] | None = None,
    ) -> None:
        """Begins to wait for files of a checkpoint, after which its pointer is uploaded.

        Args:
            remote_file_names: The whole names of the objects, of whichever rank they are.
            symlink_file_name: The pointer's text file, read at once; None only waits.
            symlink_remote_file_name: The pointer's name in the store.
            index: The name in the store, and the path, of a file that is uploaded after the other
                files and before the pointer; it is read at once.
        """
        if not self.rank_saves_symlinks:
            return
        check = self.remote_uploader.check_remote_files_exist_async(
            remote_file_names, self.upload_timeout_in_seconds, self.wait_before_next_try_in_seconds
        )
        text = None if symlink_file_name is None else Path(symlink_file_name).read_text()
        held = None if index is None else (index[0], Path(index[1]).read_bytes())
        self.symlink_upload_tasks.append(_SymlinkTask(check, text, symlink_remote_file_name, held))

    def batch_end(self, state: State, logger: Logger) -> None:
        """Raises what went wrong with an upload, and moves the pointer if it can."""
        del state, logger
        self.remote_uploader.check_workers()
        self._move_pointer()

    def wait(self, seconds_for_others: float | None = None) -> None:
        """Waits for all uploads and pointers, and raises what went wrong.

        Args:
            seconds_for_others: How long to wait for other ranks' files once this rank's are there.

        Raises:
            RuntimeError: If it takes too long.
        """
        own = [*self.remote_uploader.futures]
        late = wait_for(own, timeout=self.upload_timeout_in_seconds).not_done
        if not late:
            self.remote_uploader.check_workers()  # nobody waits for others if this rank failed
            checks = [task.check for task in self.symlink_upload_tasks]
            patience = self.upload_timeout_in_seconds
            patience = patience if seconds_for_others is None else min(patience, seconds_for_others)
            late = wait_for(checks, timeout=patience).not_done
        self.remote_uploader.check_workers()
        if late:
            raise RuntimeError(
                f"{len(late)} uploads of checkpoints did not end within "
                f"{self.upload_timeout_in_seconds} seconds (upload_timeout_in_seconds); the "
                "pointer in the store leads to the last one that did."
            )
        self._move_pointer()
        self.remote_uploader.wait()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Waits for the uploads."""
        del state, logger
        self.wait()

    def post_close(self) -> None:
        """Waits for the uploads and frees what they need; what goes wrong now is only logged."""
        try:
            self.wait(SECONDS_FOR_OTHERS_AT_CLOSE)
        except Exception:
            log.exception("An upload of a checkpoint failed while closing.")
        try:
            self.remote_uploader.wait_and_close()
        except Exception:
            log.exception("An upload of a checkpoint failed while closing.")

    def _move_pointer(self) -> None:
        """Uploads the newest pointer whose files are there; those before it are not needed."""
        ended = [task for task in self.symlink_upload_tasks if task.check.done()]
        if not ended:
            return
        self.symlink_upload_tasks = [t for t in self.symlink_upload_tasks if t not in ended]
        for task in ended:
            if task.check.result() is not RemoteFilesExistingCheckStatus.EXIST:
                raise RuntimeError(
                    "A checkpoint did not arrive in the store, so "
                    f"{task.remote_name} is not moved: the check of its files ended "
                    f"with {task.check.result().name}."
                )
            if task.index is not None:
                self._upload_index(*task.index)
        newest = ended[-1]
        if newest.text is not None and newest.remote_name is not None:
            with _pointer_file(newest.text) as path:
                self.remote_uploader.upload_file_async(newest.remote_name, path, overwrite=True)

    def _upload_index(self, remote_name: str, content: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "index")
            path.write_bytes(content)
            self.remote_uploader.upload_file_async(remote_name, str(path), overwrite=True)


@contextlib.contextmanager
def _pointer_file(target: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pointer.symlink")
        create_symlink_file(target, path)
        yield path


def upload_file(
    dest_dir: str,
    source_path: str | None = None,
    symlink_granularity: Literal["file", "dir"] | None = None,
    symlink_name: str = "latest.symlink",
    async_upload: bool = True,
    state: State | None = None,
    overwrite: bool = False,
) -> None:
    """Copies each rank's file of a checkpoint to a folder in an object store. All ranks call it.

    Args:
        dest_dir: The address of the folder.
        source_path: This rank's file; None if it has none.
        symlink_granularity: Make a pointer to the file of the first rank that has one (``file``),
            or to the folder (``dir``), once all files are there; None makes none.
        symlink_name: The pointer's name in the folder.
        async_upload: Upload while training goes on, watched by a callback of ``state``. Otherwise
            everything is in the store when this returns.
        state: The run's State; needed for ``async_upload``.
        overwrite: Replace objects of the same name.

    Raises:
        ValueError: If arguments do not go together.
        FileExistsError: If an object is there and ``overwrite`` is off.
    """
    if async_upload and state is None:
        raise ValueError("async_upload=True needs the run's state, whose callbacks watch it.")
    if symlink_granularity not in (None, "file", "dir"):
        raise ValueError(
            f"symlink_granularity={symlink_granularity!r} must be 'file', 'dir' or None."
        )
    if source_path is not None and not os.path.isfile(source_path):
        raise ValueError(f"source_path={source_path!r} is not a file.")
    folder = parse_uri(dest_dir)[2].rstrip("/")
    name = None if source_path is None else posixpath.join(folder, os.path.basename(source_path))
    names = [found for found in dist.all_gather_object(name) if found is not None]
    watch = _watcher(dest_dir, state if async_upload else None)
    if name is not None and source_path is not None:
        watch.remote_uploader.upload_file_async(name, source_path, overwrite)
    if symlink_granularity is not None and names:
        with _pointer_file(names[0] if symlink_granularity == "file" else folder) as path:
            remote_name = posixpath.normpath(posixpath.join(folder, symlink_name))
            watch.add_symlink_upload_task(names, path, remote_name)
    if not async_upload:
        try:
            watch.wait()
        finally:
            watch.post_close()
        dist.barrier()


def _watcher(dest_dir: str, state: State | None) -> CheckpointUploadCallback:
    """Returns the run's callback for a store, which may be new, or one for this call only."""
    scheme, bucket, _folder = parse_uri(dest_dir)
    for callback in () if state is None else state.callbacks:
        if isinstance(callback, CheckpointUploadCallback):
            uploader = callback.remote_uploader
            if (uploader.remote_backend_name, uploader.remote_bucket_name) == (scheme, bucket):
                return callback
    made = CheckpointUploadCallback(RemoteUploader(dest_dir))
    if state is not None:
        state.callbacks.append(made)
    return made
