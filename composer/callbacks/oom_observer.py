"""What was in the GPU's memory when it ran out."""

import dataclasses
import logging
import os
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from composer.callbacks._memory_files import (
    Snapshot,
    can_record,
    draw_flames_of_memory,
    draw_flames_of_segments,
    draw_segments,
    draw_timeline,
    make_folder,
    refuse_other_runs_files,
    write_files,
    write_pickle,
)
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.file_helpers import parse_uri
from composer.utils.file_names import format_name_with_dist

log = logging.getLogger(__name__)


@dataclass
class SnapshotFileNameConfig:
    """The files of one observation."""

    snapshot_file: str
    trace_plot_file: str
    segment_plot_file: str
    segment_flamegraph_file: str
    memory_flamegraph_file: str

    @classmethod
    def from_file_name(cls, filename: str) -> "SnapshotFileNameConfig":
        """Returns the names that begin with ``filename``."""
        return cls(
            snapshot_file=f"{filename}_snapshot.pickle",
            trace_plot_file=f"{filename}_trace_plot.html",
            segment_plot_file=f"{filename}_segment_plot.html",
            segment_flamegraph_file=f"{filename}_segment_flamegraph.svg",
            memory_flamegraph_file=f"{filename}_memory_flamegraph.svg",
        )

    def list_filenames(self) -> list[str]:
        """Returns all names."""
        return list(dataclasses.astuple(self))


_MAKERS = (
    write_pickle,
    draw_timeline,
    draw_segments,
    draw_flames_of_segments,
    draw_flames_of_memory,
)


class OOMObserver(Callback):
    """Records CUDA's allocations, and writes what memory held whenever it runs out.

    Works on CUDA devices only; elsewhere it warns.

    Args:
        max_entries: How many allocations to keep at most.
        folder: Where to write, with placeholders.
        filename: What the names there begin with.
        remote_file_name: The same for loggers that keep files; None uploads nothing.
        overwrite: Allow a new run in a folder that is not empty.
    """

    def __init__(
        self,
        max_entries: int = 100000,
        folder: str = "{run_name}/torch_traces",
        filename: str = "rank{rank}_oom",
        remote_file_name: str | None = "{run_name}/oom_traces/rank{rank}_oom",
        overwrite: bool = False,
    ) -> None:
        self.max_entries = max_entries
        self.folder = folder
        self.folder_name: str | None = None
        self.filename = filename
        self.remote_file_name = remote_file_name
        self.remote_path_in_bucket = remote_file_name and parse_uri(remote_file_name)[2]
        self.overwrite = overwrite
        self.filename_config: SnapshotFileNameConfig | None = None
        self._enabled = True
        self._has_written = False

    def init(self, state: State, logger: Logger) -> None:
        """Makes the folder and begins to watch, or says that there is nothing to watch."""
        self._enabled = can_record(state, "oom observer")
        if not self._enabled:
            return
        self.folder_name = make_folder(state, self.folder)
        self.filename_config = SnapshotFileNameConfig.from_file_name(
            format_name_with_dist(os.path.join(self.folder_name, self.filename), state.run_name)
        )
        torch.cuda.memory._record_memory_history(max_entries=self.max_entries)
        itself, run = weakref.ref(self), weakref.ref(state)

        def observe(device: int, alloc: int, device_alloc: int, device_free: int) -> None:
            del device, alloc, device_alloc, device_free
            observer, its_run = itself(), run()
            if observer is not None and its_run is not None and observer._enabled:
                observer._observe(logger)

        # Torch keeps observers until the process ends.
        attach: Any = torch._C._cuda_attach_out_of_memory_observer  # type: ignore[attr-defined]  # CUDA builds
        attach(observe)

    def after_load(self, state: State, logger: Logger) -> None:
        """Refuses a folder with files of another run."""
        refuse_other_runs_files(state, self.folder_name, self.overwrite)

    def close(self, state: State, logger: Logger) -> None:
        """Stops watching."""
        if self._enabled and self.folder_name is not None:
            torch.cuda.memory._record_memory_history(enabled=None)
        self._enabled = False

    def _observe(self, logger: Logger) -> None:
        try:
            snapshot: Any = torch.cuda.memory._snapshot()
            self._write(snapshot, logger)
        except Exception:  # whatever happens here must not hide that memory ran out
            log.exception("The record of the memory that ran out could not be written.")

    def _write(self, snapshot: Snapshot, logger: Logger) -> None:
        assert self.filename_config is not None
        # Memory may run out again and again, as when a micro-batch size is being looked for.
        overwrite = self.overwrite or self._has_written
        self._has_written = True
        names = self.filename_config.list_filenames()
        remote: dict[str, str] = {}
        if self.remote_path_in_bucket:
            there = SnapshotFileNameConfig.from_file_name(self.remote_path_in_bucket)
            remote = dict(zip(names, there.list_filenames(), strict=True))
        write_files(snapshot, dict(zip(names, _MAKERS, strict=True)), remote, logger, overwrite)
