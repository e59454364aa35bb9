"""Copies files to an object store in threads, while whoever handed them over goes on."""

import logging
import multiprocessing as multiprocessing  # programs' tests replace its get_context here
import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from enum import Enum
from pathlib import Path
from typing import Any

from composer.utils import dist
from composer.utils.background import BackgroundThreads
from composer.utils.file_helpers import (
    arguments_of_store,
    maybe_create_object_store_from_uri,
    parse_uri,
)
from composer.utils.object_store.object_store import ObjectStoreTransientError
from composer.utils.object_store.utils import build_remote_backend
from composer.utils.retrying import retry

__all__ = ["RemoteFilesExistingCheckStatus", "RemoteUploader"]

log = logging.getLogger(__name__)

# Small files may be logs, which grow in place: the copy is of now. Large ones are checkpoints:
# nobody writes to them again, and copying one would keep training waiting, so it is linked.
_COPY_UP_TO_BYTES = 1 << 26
_FIRST_PAUSE_SECONDS = 0.25


class RemoteFilesExistingCheckStatus(Enum):
    """How a check whether files have arrived has ended."""

    EXIST = 1
    TIMEOUT = 2
    ERROR = 3


class RemoteUploader:
    """Uploads files in threads, several at a time; files of one name arrive in order.

    A ``.symlink`` file, which points at another, arrives after all that was handed over before it,
    and not at all if one of those failed.

    A file may be changed or deleted as soon as it is handed over. An upload that fails is raised by
    the next ``check_workers`` or ``wait``, or by its future.

    Args:
        remote_folder: An address in the store, such as ``s3://bucket/folder``. It says which store;
            object names are given whole, the folder in front.
        backend_kwargs: Arguments of the store besides those that the address names.
        num_concurrent_uploads: How many files at a time.
        num_attempts: How often to try again what a passing trouble stopped.
        staging_folder: Where files wait; on the file system of the files, large ones need no copy.

    Raises:
        ValueError: If a number is below 1, or the address is a local path.
        NotImplementedError: If there is no store for the address.
    """

    def __init__(
        self,
        remote_folder: str,
        backend_kwargs: dict[str, Any] | None = None,
        num_concurrent_uploads: int = 2,
        num_attempts: int = 3,
        staging_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        for name, number in (
            ("num_concurrent_uploads", num_concurrent_uploads),
            ("num_attempts", num_attempts),
        ):
            if number < 1:
                raise ValueError(f"{name}={number!r} must be at least 1.")
        self.remote_folder = remote_folder
        self.remote_backend_name, self.remote_bucket_name, self.path = parse_uri(remote_folder)
        if not self.remote_backend_name:
            raise ValueError(
                f"{remote_folder!r} is a local path; give the address of a store, such as "
                f"file://{os.path.abspath(remote_folder)} or s3://bucket."
            )
        self.backend_kwargs = arguments_of_store(remote_folder) | (backend_kwargs or {})
        self.remote_backend: Any = (
            maybe_create_object_store_from_uri(remote_folder)
            if backend_kwargs is None
            else build_remote_backend(self.remote_backend_name, self.backend_kwargs)
        )
        """The store; threads may share it."""
        self.num_attempts = num_attempts
        self.futures: dict[Future[None], str] = {}
        """Uploads whose end nobody has looked at, with the names of their objects."""
        self.failures: queue.SimpleQueue[Exception] = queue.SimpleQueue()
        """What went wrong and was not raised yet."""
        self.is_remote_upload_failed = threading.Event()
        self._newest: dict[str, Future[None]] = {}
        self._staging_folder = staging_folder
        self._staging: str | None = None
        self.upload_executor = BackgroundThreads(num_concurrent_uploads, "upload")
        self.check_remote_files_exist_executor = BackgroundThreads(
            num_concurrent_uploads, "upload-check"
        )
        self._closing = threading.Event()
        stagger = float(os.environ.get("COMPOSER_LOCAL_RANK_STAGGER_SECONDS", 0))
        self._delay_seconds = stagger * dist.get_local_rank()

    def init(self) -> None:
        """Does nothing: an uploader is ready when it is made. Programs of Composer call it."""

    def upload_file_async(
        self, remote_file_name: str, file_path: str | os.PathLike[str], overwrite: bool
    ) -> "Future[None]":
        """Hands a file over.

        Args:
            remote_file_name: The object's whole name in the bucket.
            file_path: The file.
            overwrite: Replace an object of that name; otherwise it is a ``FileExistsError``.
        """
        staged_path = self._stage(file_path)
        if remote_file_name.endswith(".symlink"):
            before = list(self.futures)  # it points at one of them
        else:
            before = [self._newest[remote_file_name]] if remote_file_name in self._newest else []
        future = self.upload_executor.submit(
            self._run, remote_file_name, staged_path, overwrite, before
        )
        self._newest[remote_file_name] = future
        self.futures[future] = remote_file_name
        return future

    def is_waiting(self, remote_file_name: str) -> bool:
        """Tells whether an upload of that name is still on its way."""
        future = self._newest.get(remote_file_name)
        return future is not None and not future.done()

    def check_workers(self) -> None:
        """Raises what went wrong with an upload that has ended."""
        for future in [future for future in self.futures if future.done()]:
            del self.futures[future]
        if not self.failures.empty():
            raise self.failures.get()

    def wait(self) -> None:
        """Waits for all uploads, and raises what went wrong."""
        wait_for(self.futures)
        self.check_workers()

    def wait_and_close(self) -> None:
        """Waits for all uploads and frees the threads, the staging folder and the store."""
        self._closing.set()
        try:
            self.wait()
        finally:
            wait_for(self.futures)
            self.upload_executor.close()
            self.check_remote_files_exist_executor.close()
            if self._staging is not None:
                shutil.rmtree(self._staging, ignore_errors=True)
            self.remote_backend.close()

    def check_remote_files_exist_async(
        self,
        remote_checkpoint_file_names: Sequence[str],
        max_wait_time_in_seconds: float = 3600,
        wait_before_next_try_in_seconds: float = 30,
    ) -> "Future[RemoteFilesExistingCheckStatus]":
        """Waits in a thread until all of these objects are there, of whichever rank they are.

        An upload of this rank that fails ends the wait.

        Args:
            remote_checkpoint_file_names: The whole names of the objects.
            max_wait_time_in_seconds: When to give up.
            wait_before_next_try_in_seconds: How long to pause between two looks at most; the first
                pauses are shorter.
        """
        names = list(remote_checkpoint_file_names)
        return self.check_remote_files_exist_executor.submit(
            self._watch,
            names,
            [self._newest[name] for name in names if name in self._newest],
            max_wait_time_in_seconds,
            wait_before_next_try_in_seconds,
        )

    def exists(self, remote_file_name: str) -> bool:
        """Tells whether there is an object of that name."""
        try:
            self.retried(self.remote_backend.get_object_size)(remote_file_name)
        except FileNotFoundError:
            return False
        return True

    def retried(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a call to the store that is repeated after trouble that may pass."""
        return retry(ObjectStoreTransientError, num_attempts=self.num_attempts)(call)

    def _stage(self, file_path: str | os.PathLike[str]) -> str:
        if self._staging is None:
            # No TemporaryDirectory: at exit it would be gone before a run that nobody closed is.
            self._staging = tempfile.mkdtemp(prefix="uploads_", dir=self._staging_folder)
        folder = tempfile.mkdtemp(dir=self._staging)
        staged_path = os.path.join(folder, os.path.basename(file_path))
        if os.path.getsize(file_path) > _COPY_UP_TO_BYTES:
            try:
                os.link(os.path.realpath(file_path), staged_path)
                return staged_path
            except OSError:
                log.debug("%s cannot be linked and is copied to be uploaded.", file_path)
        shutil.copyfile(file_path, staged_path)
        return staged_path

    def _run(
        self, name: str, staged_path: str, overwrite: bool, before: "list[Future[None]]"
    ) -> None:
        try:
            if self._delay_seconds:
                time.sleep(self._delay_seconds)
            wait_for(before)  # they were started earlier, so they hold or have left their threads
            if name.endswith(".symlink") and any(future.exception() for future in before):
                log.error("%s was not moved: an upload before it failed.", name)
                return
            if not overwrite and self.exists(name):
                raise FileExistsError(
                    f"Object {self.remote_backend.get_uri(name)} already exists, but overwrite was "
                    "set to False. Choose another name or run_name, or allow overwriting."
                )
            self.retried(self.remote_backend.upload_object)(name, staged_path)
        except Exception as error:  # whatever a store raises
            self.failures.put(error)
            self.is_remote_upload_failed.set()
            raise
        finally:
            shutil.rmtree(Path(staged_path).parent, ignore_errors=True)

    def _watch(
        self, names: list[str], own: "list[Future[None]]", max_seconds: float, pause_seconds: float
    ) -> RemoteFilesExistingCheckStatus:
        end = time.monotonic() + max_seconds
        pause = min(_FIRST_PAUSE_SECONDS, pause_seconds)  # other ranks' files are seldom far behind
        wait_for(own, max_seconds)  # before them there is no use in looking
        try:
            while True:
                names = [name for name in names if not self.exists(name)]
                if not names:
                    return RemoteFilesExistingCheckStatus.EXIST
                if self.is_remote_upload_failed.is_set():
                    log.error("An upload has failed; these are not waited for: %s", names)
                    return RemoteFilesExistingCheckStatus.ERROR
                if time.monotonic() >= end or self._closing.wait(pause):
                    log.error("Not in the store after %s seconds: %s", max_seconds, names)
                    return RemoteFilesExistingCheckStatus.TIMEOUT
                pause = min(2 * pause, pause_seconds)
        except Exception as error:  # whatever a store raises is the answer of this check
            log.error("The store could not be asked for %s", names, exc_info=error)
            return RemoteFilesExistingCheckStatus.ERROR
