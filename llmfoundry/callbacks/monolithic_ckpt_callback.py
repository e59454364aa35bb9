"""Saves one whole file beside checkpoints that are sharded."""

import os
import tempfile
from typing import Any

from composer.checkpoint.content import full_state
from composer.checkpoint.monolithic import write_checkpoint_file
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.intervals import create_interval_scheduler
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils import dist
from composer.utils.background import is_done_on_rank_zero, start_in_daemon
from composer.utils.file_helpers import is_uri, parse_uri
from composer.utils.file_names import format_name_with_dist_and_time
from composer.utils.misc import partial_format
from composer.utils.remote_uploader import RemoteUploader

__all__ = ["MonolithicCheckpointSaver"]


class MonolithicCheckpointSaver(Callback):
    """Saves a run to one file, even if its model is sharded: what loads and converts anywhere.

    Rank 0 gathers the weights, and moments if they are wanted, in its host's memory and writes
    them; the trainer loads the file as any checkpoint.

    Args:
        save_folder: A folder, or an address in a store, with placeholders.
        batch_interval: After how many batches; the end of training saves too.
        filename: The file's name, with placeholders.
        overwrite: Replaces a file of the same name. A resumed run may replace its own anyway.
        keep_optimizers: Whether moments are in the file, without which a run cannot go on as it
            was.

    Raises:
        ValueError: ``batch_interval`` is not positive.
        FileExistsError: There is such a file, when it is to be saved.
    """

    def __init__(
        self,
        save_folder: str,
        batch_interval: int,
        filename: str = "ep{epoch}-ba{batch}.pt",
        overwrite: bool = False,
        keep_optimizers: bool = False,
    ) -> None:
        super().__init__()
        if batch_interval < 1:
            raise ValueError(f"batch_interval={batch_interval} must be at least one batch.")
        self.save_folder = save_folder
        self.save_interval = create_interval_scheduler(f"{batch_interval}ba")
        self.filename = filename
        self.overwrite = overwrite
        self.keep_optimizers = keep_optimizers
        self._last_batch = -1

    def init(self, state: State, logger: Logger) -> None:
        """Fills in what loggers know of paths."""
        self.save_folder = partial_format(self.save_folder, **logger.path_placeholders())

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Saves, if it is time to."""
        self._save_if_due(state, Event.BATCH_CHECKPOINT)

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Saves, if training is over."""
        self._save_if_due(state, Event.EPOCH_CHECKPOINT)

    def _save_if_due(self, state: State, event: Event) -> None:
        batch = int(state.timestamp.batch)
        if self.save_interval(state, event) and batch != self._last_batch:
            self._last_batch = batch
            self._save(state)

    def _save(self, state: State) -> None:
        path = format_name_with_dist_and_time(
            os.path.join(self.save_folder, self.filename), state.run_name, state.timestamp
        )
        may_replace = self.overwrite or state.autoresume
        if not may_replace and not is_uri(path):
            dist.from_rank_zero(lambda: _refuse_existing(path))
        content = full_state(state, whole=True, with_optimizers=self.keep_optimizers)
        pending = None
        if dist.get_global_rank() == 0:
            pending = start_in_daemon("whole-checkpoint", _store, content, path, may_replace)
        is_done_on_rank_zero(pending)
        dist.from_rank_zero(lambda: pending and pending.result())


def _refuse_existing(path: str) -> None:
    if os.path.exists(path):
        raise FileExistsError(
            f"{path} exists and overwrite is off. Choose another save_folder, run_name or "
            "filename, or set overwrite: true."
        )


def _store(content: dict[str, Any], path: str, overwrite: bool) -> None:
    """Writes the file, in a store by way of a scratch folder."""
    if not is_uri(path):
        write_checkpoint_file(content, path)
        return
    with tempfile.TemporaryDirectory() as scratch:
        copy = os.path.join(scratch, os.path.basename(path))
        write_checkpoint_file(content, copy)
        uploader = RemoteUploader(path)
        try:
            uploader.upload_file_async(parse_uri(path)[2], copy, overwrite)
        finally:
            uploader.wait_and_close()
