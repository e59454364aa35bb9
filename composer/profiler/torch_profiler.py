"""Torch's own profiler, driven by the schedule of the run's profiler."""

from __future__ import annotations

import logging
import warnings

import torch
import torch.profiler

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.profiler._trace_files import (
    SavedTraces,
    delete_old_traces,
    profiler_of,
    refuse_traces_of_other_runs,
    trace_path,
    upload_trace,
)
from composer.profiler.profiler_action import ProfilerAction
from composer.profiler.utils import export_memory_timeline_html

log = logging.getLogger(__name__)

_TORCH_ACTIONS = {
    ProfilerAction.SKIP: torch.profiler.ProfilerAction.NONE,
    ProfilerAction.WARMUP: torch.profiler.ProfilerAction.WARMUP,
    ProfilerAction.ACTIVE: torch.profiler.ProfilerAction.RECORD,
    ProfilerAction.ACTIVE_AND_SAVE: torch.profiler.ProfilerAction.RECORD_AND_SAVE,
}
_SUMMARY_ROWS = 20


class TorchProfiler(Callback):
    """Records operators, kernels and allocations with ``torch.profiler``; `Profiler` makes it.

    Each trace is a file for Perfetto, TensorBoard or ``chrome://tracing``, and is handed to the
    profiler's trace handlers too. Tables of the most expensive operators are logged (Python
    logging, INFO) at the end.

    Args:
        folder: Where the traces go.
        filename: What they are called; ``{batch}`` counts the batches that are done.
        remote_file_name: What they are called where a logger uploads them to; None uploads none.
        memory_filename: What the memory timeline (HTML) is called; None makes none. It needs
            shapes, memory and stacks.
        memory_remote_file_name: What it is called where a logger uploads it to.
        overwrite: Whether a new run may write over the traces of another.
        use_gzip: Whether to compress the traces; their names then end with ``.gz``.
        record_shapes: Whether to record the shapes of operands.
        profile_memory: Whether to record allocations.
        with_stack: Whether to record source lines; this is slow.
        with_flops: Whether to estimate FLOPs.
        num_traces_to_keep: Deletes the oldest traces beyond so many; -1 keeps all.

    Raises:
        ValueError: If a memory timeline is wanted without what it needs.
    """

    def __init__(
        self,
        folder: str = "{run_name}/torch_traces",
        filename: str = "rank{rank}.{batch}.pt.trace.json",
        remote_file_name: str | None = "{run_name}/torch_traces/rank{rank}.{batch}.pt.trace.json",
        memory_filename: str | None = None,
        memory_remote_file_name: str
        | None = "{run_name}/torch_memory_traces/rank{rank}.{batch}.pt.trace.memory.html",
        overwrite: bool = False,
        use_gzip: bool = False,
        record_shapes: bool = False,
        profile_memory: bool = True,
        with_stack: bool = False,
        with_flops: bool = True,
        num_traces_to_keep: int = -1,
    ) -> None:
        if memory_filename is not None and not (with_stack and record_shapes and profile_memory):
            raise ValueError(
                f"The memory timeline {memory_filename!r} needs with_stack, record_shapes and "
                f"profile_memory to be True; they are {with_stack}, {record_shapes} and "
                f"{profile_memory}."
            )
        self.overwrite = overwrite
        self.folder = folder
        self.filename = _with_gz(filename) if use_gzip else filename
        self.remote_file_name = (
            _with_gz(remote_file_name) if use_gzip and remote_file_name else remote_file_name
        )
        self.memory_filename = memory_filename
        self.memory_remote_file_name = memory_remote_file_name
        self.record_shapes = record_shapes
        self.profile_memory = profile_memory
        self.with_stack = with_stack
        self.with_flops = with_flops
        self.num_traces_to_keep = num_traces_to_keep
        self.saved_traces: SavedTraces = []
        """The traces that were saved and kept, oldest first, with the time of each."""
        self.profiler: torch.profiler.profile | None = None
        """Torch's profiler, from the first batch on."""
        self._is_running = False

    @property
    def records_anything(self) -> bool:
        """Whether anything is asked for that this records."""
        return self.record_shapes or self.profile_memory or self.with_stack or self.with_flops

    def init(self, state: State, logger: Logger) -> None:
        """Checks that the run has a profiler.

        Raises:
            RuntimeError: If it has none.
        """
        profiler_of(state, self)

    def after_load(self, state: State, logger: Logger) -> None:
        """Refuses to write over the traces of another run."""
        if not self.overwrite:
            names = [name for name in (self.filename, self.memory_filename) if name is not None]
            refuse_traces_of_other_runs(state, self.folder, names)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Starts torch's profiler, if it does not run, and logs what it does in this batch."""
        if not self._is_running:
            # Not earlier: the schedule knows only now where the run was resumed.
            schedule = profiler_of(state, self).schedule
            self.profiler = torch.profiler.profile(
                schedule=lambda _step: _TORCH_ACTIONS[schedule(state)],
                on_trace_ready=lambda profiler: self._save(profiler, state, logger),
                record_shapes=self.record_shapes,
                profile_memory=self.profile_memory,
                with_stack=self.with_stack,
                with_flops=self.with_flops,
            )
            self.profiler.start()
            self._is_running = True
        assert self.profiler is not None
        logger.log_traces({"profiler/state": self.profiler.current_action.name})

    def batch_end(self, state: State, logger: Logger) -> None:
        """Goes on to the next batch, and saves if this one was the last of its cycle."""
        if self._is_running:
            assert self.profiler is not None
            with warnings.catch_warnings():
                # Each cycle is saved at its end, so that nothing is lost.
                warnings.filterwarnings("ignore", message=".*Profiler clears events")
                self.profiler.step()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Saves what training left unsaved."""
        self._stop()

    def close(self, state: State, logger: Logger) -> None:
        """Stops torch's profiler, also after an error, and logs its summaries."""
        self._stop()
        if self.profiler is None or not self.saved_traces or not log.isEnabledFor(logging.INFO):
            return
        averages = self.profiler.key_averages()
        for order in self._summary_orders():
            table = averages.table(sort_by=order, row_limit=_SUMMARY_ROWS)
            log.info("The most expensive operators by %s:\n%s", order, table)

    def _summary_orders(self) -> list[str]:
        orders = ["cpu_time_total"]
        if self.profile_memory:
            orders.append("self_cpu_memory_usage")
        if torch.cuda.is_available():
            orders.append("cuda_time_total")
            if self.profile_memory:
                orders.append("self_cuda_memory_usage")
        return orders

    def _stop(self) -> None:
        if self._is_running:
            assert self.profiler is not None
            self._is_running = False
            self.profiler.stop()

    def _save(self, profiler: torch.profiler.profile, state: State, logger: Logger) -> None:
        path = trace_path(state, self.folder, self.filename)
        profiler.export_chrome_trace(str(path))
        profiler_of(state, self).record_chrome_json_trace_file(path)
        paths = [path]
        overwrite = self.overwrite
        upload_trace(state, logger, self.remote_file_name, path, overwrite=overwrite)
        if self.memory_filename is not None:
            paths.append(trace_path(state, self.folder, self.memory_filename))
            export_memory_timeline_html(profiler, str(paths[1]))
            upload_trace(state, logger, self.memory_remote_file_name, paths[1], overwrite=overwrite)
        self.saved_traces.append((state.timestamp, paths))
        delete_old_traces(self.saved_traces, self.num_traces_to_keep)


def _with_gz(name: str) -> str:
    return name if name.endswith(".gz") else f"{name}.gz"
