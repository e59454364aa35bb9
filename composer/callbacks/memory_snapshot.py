"""A record of every allocation on the GPU over a few batches."""

import os
from typing import Any

import torch

from composer.callbacks._memory_files import (
    Snapshot,
    can_record,
    draw_timeline,
    make_folder,
    refuse_other_runs_files,
    write_files,
    write_pickle,
)
from composer.core.callback import Callback
from composer.core.duration import Time
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time_unit import TimeUnit
from composer.utils.file_helpers import parse_uri
from composer.utils.file_names import format_name_with_dist_and_time


class MemorySnapshot(Callback):
    """Records CUDA's allocations once, and writes them as a pickle and as a page for a browser.

    The pickle is for pytorch.org/memory_viz. Works on CUDA devices only; elsewhere it warns.

    Args:
        skip_batches: How many batches to let pass first.
        interval: How long to record, in batches; a number counts batches.
        max_entries: How many allocations to keep at most.
        folder: Where to write, with placeholders.
        filename: The name there, without ending, with placeholders for ranks and counters.
        remote_file_name: The folder for loggers that keep files; None uploads nothing.
        overwrite: Allow a new run in a folder that is not empty.
    """

    def __init__(
        self,
        skip_batches: int = 1,
        interval: int | str | Time[int] = "3ba",
        max_entries: int = 100000,
        folder: str = "{run_name}/torch_traces",
        filename: str = "rank{rank}.{batch}.memory_snapshot",
        remote_file_name: str | None = "{run_name}/torch_memory_traces",
        overwrite: bool = False,
    ) -> None:
        self.batches_left_to_skip = skip_batches
        self.interval = Time.from_input(interval, TimeUnit.BATCH)
        if self.interval.unit is not TimeUnit.BATCH or self.interval.value < 1:
            raise ValueError(f"interval={interval!r} must be in batches, at least '1ba'.")
        self.max_entries = max_entries
        self.folder = folder
        self.folder_name: str | None = None
        self.filename = filename
        self.remote_file_name = remote_file_name
        self.remote_path_in_bucket = remote_file_name and parse_uri(remote_file_name)[2]
        self.overwrite = overwrite
        self._enabled = True
        self._start: Time[int] | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Makes the folder, or says that there is nothing to watch."""
        self._enabled = can_record(state, "memory snapshot")
        if self._enabled:
            self.folder_name = make_folder(state, self.folder)

    def after_load(self, state: State, logger: Logger) -> None:
        """Refuses a folder with files of another run."""
        refuse_other_runs_files(state, self.folder_name, self.overwrite)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Begins to record, once."""
        if not self._enabled or self._start is not None:
            return
        if self.batches_left_to_skip > 0:
            self.batches_left_to_skip -= 1
            return
        self._start = state.timestamp.batch
        self.start_record_memory_history()

    def batch_end(self, state: State, logger: Logger) -> None:
        """Writes the record, once it is long enough."""
        if self._enabled and self._start is not None:
            if state.timestamp.batch - self._start >= self.interval:
                self._finish(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Writes a record that training was too short for."""
        if self._enabled and self._start is not None:
            self._finish(state, logger)

    def start_record_memory_history(self) -> None:
        """Begins to record."""
        torch.cuda.memory._record_memory_history(max_entries=self.max_entries)

    def stop_record_memory_history(self) -> None:
        """Stops recording."""
        torch.cuda.memory._record_memory_history(enabled=None)

    def export_memory_snapshot(self, state: State, logger: Logger) -> None:
        """Writes what was recorded, and uploads it."""
        assert self.folder_name is not None
        path = format_name_with_dist_and_time(
            os.path.join(self.folder_name, self.filename), state.run_name, state.timestamp
        )
        makers = {f"{path}.pickle": write_pickle, f"{path}.html": draw_timeline}
        remote: dict[str, str] = {}
        if self.remote_path_in_bucket:
            remote = {
                each: f"{self.remote_path_in_bucket}/{os.path.basename(each)}" for each in makers
            }
        write_files(self._take(), makers, remote, logger, self.overwrite)

    def _finish(self, state: State, logger: Logger) -> None:
        try:
            self.export_memory_snapshot(state, logger)
        finally:
            self.stop_record_memory_history()
            self._enabled = False

    def _take(self) -> Snapshot:
        snapshot: Any = torch.cuda.memory._snapshot()
        return snapshot
