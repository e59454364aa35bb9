"""When checkpoints are saved, which are kept, and where they are copied to."""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.checkpoint.atomic import remove_leftovers, update_latest
from composer.checkpoint.background_save import BackgroundSave
from composer.checkpoint.conflicts import (
    cure_of_conflicts,
    refuse_folder_of_another_run,
    refuse_no_link,
    refuse_store_of_another_run,
)
from composer.checkpoint.content import tensors_of_run
from composer.checkpoint.naming import PartialFilePath, as_seen_from, sharded_template
from composer.checkpoint.upload import CheckpointUploadCallback
from composer.checkpoint.whole_run import Save, path_of_save, prepare_save
from composer.core.callback import Callback
from composer.core.duration import Time
from composer.core.event import Event
from composer.core.intervals import create_interval_scheduler
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.timestamp import Timestamp
from composer.utils import dist
from composer.utils.compression import get_compressor, is_compressed_pt
from composer.utils.file_helpers import create_symlink_file, is_uri, parse_uri
from composer.utils.file_names import format_name_with_dist
from composer.utils.misc import partial_format
from composer.utils.phases import phase
from composer.utils.remote_uploader import RemoteUploader

_DEFAULT_REMOTE_FILE_NAME = "{run_name}/checkpoints/ep{epoch}-ba{batch}-rank{rank}.pt"
_DEFAULT_LATEST_REMOTE_FILE_NAME = "{run_name}/checkpoints/latest-rank{rank}.pt"

Name = str | os.PathLike[str]

log = logging.getLogger(__name__)


@dataclass
class _Started:
    """A save, with the names that its checkpoint and the pointers to it have."""

    save: Save
    latest: str | None
    """The link to move."""
    remote_name: str | None
    pointer_name: str | None


class CheckpointSaver(Callback):
    """Saves the run now and then, keeps the newest checkpoints, points ``latest`` at the last.

    A checkpoint is a file, or, of a model whose ``state_dict_type`` is ``sharded``, a folder.

    A checkpoint appears whole or not at all. Only then the ``latest`` link moves, and only then are
    older checkpoints deleted: whenever the process is killed, the link leads to a whole one. A
    resumed run goes on deleting what it saved before; files of other runs are never deleted.

    Args:
        folder: Where to save, with placeholders; or the address of an object store (``file://...``),
            to which checkpoints are then copied while training goes on.
        filename: The name in ``folder``, with placeholders for ranks and counters.
        remote_file_name: The name in the store, or for loggers that can upload files. None uploads
            nothing.
        latest_filename: The name of the link to the newest checkpoint; None makes no link.
        latest_remote_file_name: The same for the store: a text file of this name and ``.symlink``.
        save_interval: How often: a time string, a number of epochs, or a function ``(state, event)
            -> bool``. The end of training saves too.
        overwrite: Allow a folder with later checkpoints of another run, and replace files. A run
            with ``autoresume`` takes what it finds under its name for its own and may do so anyway.
        num_checkpoints_to_keep: How many local checkpoints to keep; -1 keeps all, 0 deletes each as
            soon as it is handed to the upload. Copies in a store are kept.
        weights_only: Save the weights only.
        ignore_keys: What to leave out: globs of ``/``-joined paths, or a function that changes the
            content in place.
        num_concurrent_uploads: How many files to upload at a time.
        upload_timeout_in_seconds: How long to wait for uploads at the end.
        save_async: Keep training waiting only while the state is copied to the host's memory, and
            write the copy while training goes on. The next save waits for the last one, and so does
            the end of training; a save that failed is raised there, on all ranks, and ``latest``
            stays. It takes as much more of the host's memory as this rank writes.

    Raises:
        NotImplementedError: For the address of a store that does not exist.
        CompressorNotFound: If the name asks for a compressor that is not installed.
    """

    def __init__(
        self,
        folder: Name = "{run_name}/checkpoints",
        filename: Name = "ep{epoch}-ba{batch}-rank{rank}.pt",
        remote_file_name: Name | None = _DEFAULT_REMOTE_FILE_NAME,
        latest_filename: Name | None = "latest-rank{rank}.pt",
        latest_remote_file_name: Name | None = _DEFAULT_LATEST_REMOTE_FILE_NAME,
        save_interval: Time[Any] | str | int | Callable[[State, Event], bool] = "1ep",
        *,
        overwrite: bool = False,
        num_checkpoints_to_keep: int = -1,
        weights_only: bool = False,
        ignore_keys: list[str] | Callable[[dict[str, Any]], None] | None = None,
        num_concurrent_uploads: int = 1,
        upload_timeout_in_seconds: int = 3600,
        save_async: bool = False,
    ) -> None:
        if num_checkpoints_to_keep < -1:
            raise ValueError(
                f"num_checkpoints_to_keep={num_checkpoints_to_keep!r} must be -1 (keep all) or the "
                "number of checkpoints to keep."
            )
        self.save_interval: Callable[[State, Event], bool] = (
            save_interval if callable(save_interval) else create_interval_scheduler(save_interval)
        )
        if is_compressed_pt(str(filename)):
            get_compressor(str(filename)).check_exists()
        self.folder = str(folder)
        self._uploads: CheckpointUploadCallback | None = None
        self._local_copies: tempfile.TemporaryDirectory[str] | None = None
        if is_uri(self.folder):
            folder_name = parse_uri(self.folder)[2].rstrip("/")
            if remote_file_name in (None, _DEFAULT_REMOTE_FILE_NAME):
                remote_file_name = f"{folder_name}/{_without_slash(filename)}"
            if latest_remote_file_name == _DEFAULT_LATEST_REMOTE_FILE_NAME:
                latest_remote_file_name = (
                    f"{folder_name}/{_without_slash(latest_filename)}" if latest_filename else None
                )
            uploader = RemoteUploader(self.folder, num_concurrent_uploads=num_concurrent_uploads)
            self._uploads = CheckpointUploadCallback(uploader, upload_timeout_in_seconds)
            self._local_copies = tempfile.TemporaryDirectory(prefix="checkpoints_")
            self.folder = self._local_copies.name
        self.filename = PartialFilePath(_without_slash(filename), self.folder)
        self.latest_filename = _maybe_path(latest_filename, self.folder)
        self.remote_file_name = _maybe_path(remote_file_name)
        self.latest_remote_file_name = _maybe_path(latest_remote_file_name)
        self.overwrite = overwrite
        self.num_checkpoints_to_keep = num_checkpoints_to_keep
        self.weights_only = weights_only
        self.ignore_keys = ignore_keys
        self.num_concurrent_uploads = num_concurrent_uploads
        self.upload_timeout_in_seconds = upload_timeout_in_seconds
        self.save_async = save_async
        self._background: BackgroundSave | None = None
        self._started: _Started | None = None
        self._symlink_upload_wait_before_next_try_in_seconds = 30.0
        self.last_checkpoint_batch: Time[int] | None = None
        self.start_batch: Time[int] | None = None
        self.saved_checkpoints: list[str] = []
        self.all_saved_checkpoints_to_timestamp: dict[str, Timestamp] = {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the checkpoints that this run has saved and kept, in the order of training."""
        return {
            "all_saved_checkpoints_to_timestamp": [
                (path, timestamp.state_dict())
                for path, timestamp in self.all_saved_checkpoints_to_timestamp.items()
            ]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back the list; which of it is still in this folder is seen at FIT_START."""
        for path, timestamp_state in state.get("all_saved_checkpoints_to_timestamp", []):
            timestamp = Timestamp()
            timestamp.load_state_dict(timestamp_state)
            # Of a folder of shards, older releases list a file in it.
            name = os.path.dirname(path) if path.endswith(".distcp") else path
            self.all_saved_checkpoints_to_timestamp[name] = timestamp

    def init(self, state: State, logger: Logger) -> None:
        """Fills in what loggers know of paths, and makes the folder."""
        if self._local_copies is not None:  # shards of all ranks of a node go into one folder
            told = dist.all_gather_object((dist.get_node_rank(), self.folder))
            self._move_to(next(folder for node, folder in told if node == dist.get_node_rank()))
        self._fill_in(logger.path_placeholders())
        os.makedirs(format_name_with_dist(self.folder, state.run_name), exist_ok=True)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Refuses a folder that belongs to another run, before anything is trained."""
        del logger
        if self.save_async:
            self._reserve(state)
        folder = format_name_with_dist(self.folder, state.run_name)
        self._refuse_other_runs_files(folder, state)
        if dist.get_global_rank() == 0 and os.path.isdir(folder):
            for template in self.templates(state):
                remove_leftovers(folder, template)
        self._adopt_checkpoints_of(folder, state)
        self.start_batch = state.timestamp.batch
        dist.barrier()

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Saves, if it is time to."""
        self._save_if_due(state, logger, Event.BATCH_CHECKPOINT)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Saves, if it is time to."""
        self._save_if_due(state, logger, Event.EPOCH_CHECKPOINT)

    def iteration_checkpoint(self, state: State, logger: Logger) -> None:
        """Saves, if it is time to."""
        self._save_if_due(state, logger, Event.ITERATION_CHECKPOINT)

    def templates(self, state: State) -> list[str]:
        """Returns the names that checkpoints can have in the folder: of a file, and of shards."""
        return [self.filename.filename, sharded_template(state, self.filename.filename)]

    def _remote_templates(self, state: State) -> list[str]:
        assert self.remote_file_name is not None
        name = _without_slash(self.remote_file_name.filename)
        both = name, sharded_template(state, name)
        return [format_name_with_dist(template, state.run_name) for template in both]

    @property
    def remote_uploader(self) -> RemoteUploader | None:
        """Uploads the checkpoints, if the folder is in a store."""
        return None if self._uploads is None else self._uploads.remote_uploader

    @property
    def symlink_upload_tasks(self) -> list[Any]:
        """Pointers in the store that wait for their checkpoints."""
        return [] if self._uploads is None else self._uploads.symlink_upload_tasks

    def batch_end(self, state: State, logger: Logger) -> None:
        """Raises what went wrong with an upload, and moves the pointer in the store if it can."""
        if self.save_async:
            if self.start_batch is not None and state.timestamp.batch == self.start_batch + 1:
                self._reserve(state)  # again: the optimizer has made its own tensors by now
            self._look_after_save(state, logger)
        if self._uploads is not None:
            with cure_of_conflicts():
                self._uploads.batch_end(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Waits for the save that is being written, and for the uploads."""
        self._finish_started(state, logger)
        if self._uploads is not None:
            with cure_of_conflicts():
                self._uploads.fit_end(state, logger)

    def post_close(self) -> None:
        """Waits for saves and uploads and frees what they need; what goes wrong is only logged."""
        if self._background is not None:
            error = self._background.settle()
            if error is not None:
                log.error("A checkpoint could not be written.", exc_info=error)
            self._background.close()
            self._background = None
        if self._uploads is not None:
            self._uploads.post_close()
            self._uploads = None
        if self._local_copies is not None:
            self._local_copies.cleanup()
            self._local_copies = None

    def _move_to(self, folder: str) -> None:
        self.folder = folder
        for path in (self.filename, self.latest_filename):
            if path is not None:
                path.folder = folder

    def _fill_in(self, placeholders: dict[str, str]) -> None:
        if not placeholders:
            return
        self.folder = partial_format(self.folder, **placeholders)
        for path in (
            self.filename,
            self.latest_filename,
            self.remote_file_name,
            self.latest_remote_file_name,
        ):
            if path is not None:
                path.filename = partial_format(path.filename, **placeholders)
                if path.folder is not None:
                    path.folder = self.folder

    def _refuse_other_runs_files(self, folder: str, state: State) -> None:
        problem = None
        try:
            # Of a run that is restarted under its name, what is later is what it lost when it died.
            if not self.overwrite and not state.autoresume:
                refuse_folder_of_another_run(folder, self.templates(state), state.timestamp)
                if self._uploads is not None and dist.get_global_rank() == 0:
                    store = self._uploads.remote_uploader.remote_backend
                    names = self._remote_templates(state)
                    refuse_store_of_another_run(store, names, state.timestamp)
            if self.latest_filename is not None:
                refuse_no_link(self.latest_filename.format(state))
        except FileExistsError as error:
            problem = str(error)
        # Every rank must raise, or the others would wait for those that did.
        problems = dist.all_gather_object(problem)
        for rank, found in enumerate(problems):
            if found is not None:
                raise FileExistsError(f"On rank {rank}: {found}" if len(problems) > 1 else found)

    def _adopt_checkpoints_of(self, folder: str, state: State) -> None:
        """Lets rotation go on with what this run saved into this folder before it was resumed."""
        kept: dict[str, Timestamp] = {}
        for path, timestamp in self.all_saved_checkpoints_to_timestamp.items():
            here = as_seen_from(folder, path)
            if path in self.saved_checkpoints:
                kept[path] = timestamp
            elif here and os.path.exists(here) and timestamp.batch <= state.timestamp.batch:
                kept[here] = timestamp
        self.all_saved_checkpoints_to_timestamp = kept
        self.saved_checkpoints = list(kept)

    def _save_if_due(self, state: State, logger: Logger, event: Event) -> None:
        is_new = self.last_checkpoint_batch != state.timestamp.batch
        if self.save_interval(state, event) and is_new:
            self._save_checkpoint(state, logger)

    def _save_checkpoint(self, state: State, logger: Logger, move_links: bool = True) -> None:
        """Saves now: first the checkpoint, then the pointers to it, and last old ones go."""
        with phase("saving a checkpoint"):
            self._finish_started(state, logger)
            self.last_checkpoint_batch = state.timestamp.batch
            path = path_of_save(state, self.filename.format(state, keep_placeholders=True))
            # Listed before it is written, so that the list within the checkpoint names itself.
            self._list(path, state.timestamp)
            if self.save_async and self._background is None:  # saved by hand before training
                self._background = BackgroundSave()
            try:
                save = prepare_save(
                    state,
                    self.filename.format(state, keep_placeholders=True),
                    weights_only=self.weights_only,
                    ignore_keys=self.ignore_keys,
                    background=self._background if self.save_async else None,
                )
                started = self._name(save, state, move_links)
                if self._background is not None and self.save_async:
                    self._started = started
                    self._background.start(lambda: _write(started))
                    return
                _write(started)
            except BaseException:
                self._unlist(path)
                raise
            self._finish(started, state, logger, is_agreed=True)

    def _name(self, save: Save, state: State, move_links: bool) -> _Started:
        latest = remote = pointer = None
        if move_links and self.latest_filename is not None and self.num_checkpoints_to_keep != 0:
            latest = self.latest_filename.format(state)
        if self.remote_file_name is not None:
            template = self.remote_file_name.format(state, keep_placeholders=True)
            remote = _without_slash(path_of_save(state, template))
        if move_links and self.latest_remote_file_name is not None:
            pointer = _without_slash(self.latest_remote_file_name.format(state)) + ".symlink"
        return _Started(save, latest, remote, pointer)

    def _finish_started(self, state: State, logger: Logger) -> None:
        """Waits for the save that is being written. All ranks call it, and raise if one failed."""
        if self._background is None:
            return
        error = self._background.settle()
        texts = dist.all_gather_object(
            None if error is None else f"{type(error).__name__}: {error}"
        )
        failed = {rank: text for rank, text in enumerate(texts) if text is not None}
        started, self._started = self._started, None
        if started is not None and not failed:
            self._finish(started, state, logger, is_agreed=True)
        elif started is not None:
            self._unlist(started.save.path)
        if failed:
            rank, text = next(iter(failed.items()))
            raise RuntimeError(
                f"A checkpoint could not be written beside training: rank {rank} met {text}. The "
                "checkpoint before it is still the latest."
            ) from error

    def _reserve(self, state: State) -> None:
        """Takes the memory for copies of what there is, in a thread, before a save needs it."""
        if self._background is None:
            self._background = BackgroundSave()
        if state.fsdp_sharded_state_dict_enabled or (
            dist.get_global_rank() == 0 and not state.fsdp_enabled
        ):
            self._background.reserve(tensors_of_run(state, self.weights_only))

    def _look_after_save(self, state: State, logger: Logger) -> None:
        """Hands a save on as soon as it is written."""
        background = self._background
        if self._started is not None and background is not None and background.is_done:
            if background.has_failed:
                log.error("A checkpoint could not be written; the next save will raise the error.")
            else:
                started, self._started = self._started, None
                self._finish(started, state, logger, is_agreed=False)

    def _finish(self, started: _Started, state: State, logger: Logger, is_agreed: bool) -> None:
        """Hands a checkpoint to the upload, and deletes old ones."""
        save = started.save
        if not save.is_folder and dist.get_global_rank() != 0:
            self._unlist(save.path)  # it is rank 0's file
            return
        self._upload(started, logger, self.overwrite or state.autoresume)
        # The other ranks still have to hand over their parts of a folder that is about to go.
        if save.is_folder and self.num_checkpoints_to_keep == 0:
            if not is_agreed:
                return
            dist.barrier()
        self._delete_old_checkpoints(state)

    def _list(self, path: str, timestamp: Timestamp) -> None:
        self._unlist(path)  # saved again under the same name, it is the newest again
        self.saved_checkpoints.append(path)
        self.all_saved_checkpoints_to_timestamp[path] = timestamp

    def _unlist(self, path: str) -> None:
        if path in self.saved_checkpoints:
            self.saved_checkpoints.remove(path)
        self.all_saved_checkpoints_to_timestamp.pop(path, None)

    def _upload(self, started: _Started, logger: Logger, overwrite: bool) -> None:
        remote_name, pointer_name = started.remote_name, started.pointer_name
        if remote_name is None:
            return
        own, others, index = started.save.remote_files(remote_name)
        with cure_of_conflicts(), tempfile.TemporaryDirectory() as folder:
            pointer = os.path.join(folder, "latest.symlink")
            create_symlink_file(remote_name, pointer)
            if self._uploads is not None:
                uploads = self._uploads
                uploads.wait_before_next_try_in_seconds = (
                    self._symlink_upload_wait_before_next_try_in_seconds
                )
                for name, path in own.items():
                    uploads.remote_uploader.upload_file_async(name, path, overwrite)
                if pointer_name is not None or index is not None:
                    uploads.add_symlink_upload_task(others, pointer, pointer_name, index)
            elif logger.has_file_upload_destination():
                for name, path in own.items():
                    logger.upload_file(name, path, overwrite=overwrite)
                if index is not None:
                    last = None if pointer_name is None else (pointer_name, pointer)
                    logger.upload_last(others, index, last)
                elif pointer_name is not None and not started.save.is_folder:
                    logger.upload_file(pointer_name, pointer, overwrite=True)

    def _delete_old_checkpoints(self, state: State) -> None:
        """Deletes the oldest in the order of training, whatever names or file times say."""
        if self.num_checkpoints_to_keep < 0:
            return
        while len(self.saved_checkpoints) > self.num_checkpoints_to_keep:
            self._delete(self.saved_checkpoints[0], state)

    def _delete(self, path: str, state: State) -> None:
        self._unlist(path)
        if self.latest_filename is not None:
            _remove_link_to(path, self.latest_filename.format(state))
        if os.path.isdir(path):
            if dist.get_local_rank() == 0:
                shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)


def _write(started: _Started) -> None:
    """Writes a checkpoint, and then, on rank 0, points the link at it; maybe in a thread."""
    written = started.save.write()
    if written is not None and started.latest is not None and dist.get_global_rank() == 0:
        update_latest(written, started.latest)


def _without_slash(name: Name) -> str:
    return str(name).lstrip("/")


def _maybe_path(name: Name | None, folder: str | None = None) -> PartialFilePath | None:
    return None if name is None else PartialFilePath(_without_slash(name), folder)


def _remove_link_to(path: str, latest: str) -> None:
    """Removes the ``latest`` link if it leads to ``path``, which is about to go."""
    if os.path.islink(latest) and os.path.realpath(latest) == os.path.realpath(path):
        os.unlink(latest)
