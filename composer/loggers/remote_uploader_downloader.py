"""Keeps files of a run in an object store: checkpoints, logs, traces."""

import logging
import multiprocessing as multiprocessing  # programs' tests replace its get_context here
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from composer.checkpoint.upload import SECONDS_FOR_OTHERS_AT_CLOSE, CheckpointUploadCallback
from composer.core.logger import Logger
from composer.core.logger_destination import LoggerDestination
from composer.core.state import State
from composer.utils import dist
from composer.utils.file_helpers import get_file, parse_uri, validate_credentials
from composer.utils.file_names import format_name_with_dist
from composer.utils.object_store.object_store import ObjectStore
from composer.utils.remote_uploader import RemoteUploader

__all__ = ["RemoteUploaderDownloader", "maybe_create_remote_uploader_downloader_from_uri"]

log = logging.getLogger(__name__)

_FOLDER_ARGUMENTS = {"file": "root", "sftp": "cwd"}


class RemoteUploaderDownloader(LoggerDestination):
    """Uploads files to an object store while training goes on, and gives them back.

    A file may be changed or deleted as soon as `upload_file` returns. A failed upload ends the run
    at the next batch: it may have been the only copy of a checkpoint.

    Args:
        bucket_uri: The store and the bucket, such as ``s3://bucket`` or ``file:///folder``. A path
            after the bucket is the folder of everything that is uploaded.
        backend_kwargs: Arguments of the store besides the bucket. Who gives any says by them, too,
            in which folder things are kept.
        file_path_format_string: How names in the store are made: ``{remote_file_name}``, the run's
            name and the ranks may occur.
        num_concurrent_uploads: How many files to upload at a time.
        upload_staging_folder: Where files wait for their upload; by default a temporary folder.
        use_procs: Has no effect: uploads run in threads, which need no ``__main__`` guard.
        num_attempts: How often to try in all, if trouble may pass.

    Raises:
        ValueError: If a number is below 1, or there is no store for the address.
    """

    may_stop_training: ClassVar[bool] = True

    def __init__(
        self,
        bucket_uri: str,
        backend_kwargs: dict[str, Any] | None = None,
        file_path_format_string: str = "{remote_file_name}",
        num_concurrent_uploads: int = 1,
        upload_staging_folder: str | None = None,
        use_procs: bool = True,
        num_attempts: int = 3,
    ) -> None:
        log.debug("use_procs=%s: files are uploaded in threads in any case.", use_procs)
        scheme, _bucket, folder = parse_uri(bucket_uri)
        if backend_kwargs is None and folder and scheme != "dbfs":  # whose path has it already
            at = f"/{folder}" if scheme == "file" else folder
            backend_kwargs = {_FOLDER_ARGUMENTS.get(scheme, "prefix"): at}
        self._uploader = RemoteUploader(
            bucket_uri, backend_kwargs, num_concurrent_uploads, num_attempts, upload_staging_folder
        )
        self.remote_backend_name = self._uploader.remote_backend_name
        self.remote_bucket_name = self._uploader.remote_bucket_name
        self.backend_kwargs = self._uploader.backend_kwargs
        self.file_path_format_string = file_path_format_string
        self.num_concurrent_uploads = num_concurrent_uploads
        self.num_attempts = num_attempts
        self._exception_queue = self._uploader.failures
        self._last = CheckpointUploadCallback(self._uploader)
        self._last.wait_before_next_try_in_seconds = 5.0
        self._run_name: str | None = None

    @property
    def remote_backend(self) -> ObjectStore:
        """The store."""
        return self._uploader.remote_backend

    def init(self, state: State, logger: Logger) -> None:
        """Tries the credentials, so that wrong ones show before training."""
        del logger
        if self._run_name is not None:
            raise RuntimeError(
                "This RemoteUploaderDownloader is in use: give each Trainer its own."
            )
        self._run_name = state.run_name
        if dist.get_global_rank() == 0:
            name = self._object_name(".credentials_validated_successfully")
            self._uploader.retried(validate_credentials)(self.remote_backend, name)

    def upload_file(
        self, state: State, remote_file_name: str, file_path: Path, *, overwrite: bool
    ) -> None:
        """Starts the upload of a file.

        Raises:
            FileExistsError: If one of that name is on its way and ``overwrite`` is off.
        """
        del state
        name = self._object_name(remote_file_name)
        if not overwrite and self._uploader.is_waiting(name):
            raise FileExistsError(
                f"Object {name} was already enqueued to be uploaded, but overwrite=False."
            )
        self._uploader.upload_file_async(name, file_path, overwrite)

    def upload_last(
        self,
        state: State,
        after: Sequence[str],
        index: tuple[str, Path],
        pointer: tuple[str, Path] | None,
    ) -> None:
        """Uploads what makes files a checkpoint once all of them, of whichever rank, are there."""
        del state
        self._last.add_symlink_upload_task(
            [self._object_name(name) for name in after],
            None if pointer is None else str(pointer[1]),
            None if pointer is None else self._object_name(pointer[0]),
            (self._object_name(index[0]), str(index[1])),
        )

    def can_upload_files(self) -> bool:
        """Says that files are kept."""
        return True

    def download_file(
        self,
        remote_file_name: str,
        destination: str,
        overwrite: bool = False,
        progress_bar: bool = True,
    ) -> None:
        """Fetches a file from the store."""
        self._uploader.retried(get_file)(
            self._object_name(remote_file_name),
            destination,
            object_store=self.remote_backend,
            overwrite=overwrite,
            progress_bar=progress_bar,
        )

    def get_uri_for_file(self, remote_file_name: str) -> str:
        """Returns the address that a file has, or would have, in the store."""
        return self.remote_backend.get_uri(self._object_name(remote_file_name))

    def batch_end(self, state: State, logger: Logger) -> None:
        """Raises what went wrong with an upload."""
        self._last.batch_end(state, logger)

    epoch_end = batch_end

    def fit_end(self, state: State, logger: Logger) -> None:
        """Waits for the uploads."""
        self.wait_for_workers(state.device)

    eval_standalone_end = predict_end = fit_end

    def wait_for_workers(self, device: Any = None) -> None:
        """Waits for the uploads of all ranks; if one failed, every rank raises."""
        del device  # objects are gathered, which needs none
        error = None
        try:
            self._uploader.wait()
        except Exception as caught:  # whatever a store raises must reach the other ranks
            error = caught
        failed = dist.all_gather_object(None if error is None else f"{error}")
        if any(message is not None for message in failed):
            self._uploader.is_remote_upload_failed.set()  # what is waited for will not come
        if error is not None:
            raise error
        for rank, message in enumerate(failed):
            if message is not None:
                raise RuntimeError(f"An upload of rank {rank} failed: {message}")
        dist.from_rank_zero(self._last.wait)

    def post_close(self) -> None:
        """Waits for uploads that others started while closing, and frees everything."""
        waiting = dict(self._uploader.futures)
        try:
            try:
                self._last.wait(SECONDS_FOR_OTHERS_AT_CLOSE)
            finally:
                self._uploader.wait_and_close()
        except Exception as error:
            names = sorted(name for future, name in waiting.items() if future.exception())
            warnings.warn(
                "The following objects may not have been uploaded, likely due to a worker crash: "
                f"{', '.join(names)} ({type(error).__name__}: {error})",
                RuntimeWarning,
            )

    def _object_name(self, remote_file_name: str) -> str:
        return format_name_with_dist(
            self.file_path_format_string, self._run_name, remote_file_name=remote_file_name
        ).lstrip("/")


def maybe_create_remote_uploader_downloader_from_uri(
    uri: str | os.PathLike[str], loggers: list[LoggerDestination]
) -> RemoteUploaderDownloader | None:
    """Returns a destination for the store of an address, named by the rest of the address.

    Args:
        uri: The address, such as ``s3://bucket/folder``.
        loggers: The destinations that there are.

    Returns:
        None for a local path, and where one of ``loggers`` goes to the same bucket already.
    """
    scheme, bucket, name = parse_uri(str(uri))
    if not scheme:
        return None
    for logger in loggers:
        if (
            isinstance(logger, RemoteUploaderDownloader)
            and logger.remote_backend_name == scheme
            and logger.remote_bucket_name == bucket
        ):
            warnings.warn(
                f"There already exists a RemoteUploaderDownloader object to handle {uri}: it is "
                "used."
            )
            return None
    return RemoteUploaderDownloader(str(uri)[: len(str(uri)) - len(name)])
