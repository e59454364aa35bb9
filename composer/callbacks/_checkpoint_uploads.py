"""Copies finished checkpoints to an object store while training goes on."""

import os
import shutil
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from composer.utils.file_helpers import create_symlink_file
from composer.utils.object_store.object_store import ObjectStore, ObjectStoreTransientError
from composer.utils.retrying import retry


@dataclass(frozen=True)
class _Upload:
    number: int
    staged_path: str
    remote_name: str
    pointer_name: str | None
    overwrite: bool


class CheckpointUploads:
    """Uploads checkpoints in threads; each pointer follows its payload, never the other way round.

    A failure is raised by the next ``check`` or ``wait``.

    Args:
        store: Where to.
        num_concurrent_uploads: How many files at a time.
        timeout_seconds: How long ``wait`` waits at most.
    """

    def __init__(
        self, store: ObjectStore, num_concurrent_uploads: int, timeout_seconds: float
    ) -> None:
        if num_concurrent_uploads < 1:
            raise ValueError(
                f"num_concurrent_uploads={num_concurrent_uploads!r} must be at least 1"
            )
        self.store = store
        self.timeout_seconds = timeout_seconds
        self._threads = ThreadPoolExecutor(num_concurrent_uploads, "checkpoint-upload")
        self._futures: list[Future[None]] = []
        self._staging = tempfile.TemporaryDirectory(prefix="checkpoint_uploads_")
        self._num_uploads = 0
        self._newest_pointed_at = -1
        self._pointer_lock = threading.Lock()

    def start(
        self, local_path: str, remote_name: str, pointer_name: str | None, overwrite: bool
    ) -> None:
        """Uploads a finished file, then a pointer to it; the file may be deleted meanwhile.

        Args:
            local_path: The checkpoint.
            remote_name: Its name in the store.
            pointer_name: The name of the small text file that says which checkpoint is the newest.
            overwrite: Replace an object of that name; otherwise it is a ``FileExistsError``.
        """
        number = self._num_uploads
        self._num_uploads += 1
        folder = os.path.join(self._staging.name, str(number))
        os.mkdir(folder)
        staged_path = os.path.join(folder, os.path.basename(local_path))
        try:
            os.link(local_path, staged_path)
        except OSError:  # another file system, or one without links
            shutil.copyfile(local_path, staged_path)
        upload = _Upload(number, staged_path, remote_name, pointer_name, overwrite)
        self._futures.append(self._threads.submit(self._run, upload))

    def check(self) -> None:
        """Raises what went wrong with an upload that has ended."""
        ended = [future for future in self._futures if future.done()]
        self._futures = [future for future in self._futures if not future.done()]
        for future in ended:
            future.result()

    def wait(self) -> None:
        """Waits for all uploads, and raises what went wrong."""
        late = wait(self._futures, timeout=self.timeout_seconds).not_done
        if late:
            raise RuntimeError(
                f"{len(late)} checkpoint uploads did not end within {self.timeout_seconds} seconds "
                "(upload_timeout_in_seconds); the newest pointer in the store is still right."
            )
        self.check()

    def close(self) -> None:
        """Waits for all uploads and frees the threads, the staging folder and the store."""
        try:
            self.wait()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._staging.cleanup()
            self.store.close()

    def _run(self, upload: _Upload) -> None:
        if not upload.overwrite and self._exists(upload.remote_name):
            raise FileExistsError(
                f"{self.store.get_uri(upload.remote_name)} already exists. Choose another run_name "
                "or save_folder, or set save_overwrite=True."
            )
        self._upload(upload.remote_name, upload.staged_path)
        # The pointer may only follow once the store itself says that the payload is whole.
        expected, stored = os.path.getsize(upload.staged_path), self._size(upload.remote_name)
        if stored != expected:
            raise RuntimeError(
                f"{self.store.get_uri(upload.remote_name)} has {stored} bytes after the upload of "
                f"{expected} bytes."
            )
        if upload.pointer_name is not None:
            self._point(upload, upload.pointer_name)
        shutil.rmtree(os.path.dirname(upload.staged_path))

    def _point(self, upload: _Upload, pointer_name: str) -> None:
        with self._pointer_lock:
            if upload.number < self._newest_pointed_at:
                return  # a newer checkpoint overtook this one
            path = os.path.join(os.path.dirname(upload.staged_path), "pointer.symlink")
            create_symlink_file(upload.remote_name, path)
            self._upload(pointer_name, path)
            self._newest_pointed_at = upload.number

    @retry(ObjectStoreTransientError, num_attempts=3)
    def _upload(self, remote_name: str, path: str) -> None:
        self.store.upload_object(remote_name, path)

    @retry(ObjectStoreTransientError, num_attempts=3)
    def _size(self, remote_name: str) -> int:
        return self.store.get_object_size(remote_name)

    def _exists(self, remote_name: str) -> bool:
        try:
            self._size(remote_name)
        except FileNotFoundError:
            return False
        return True
