"""The profiler of a run: decides which batches are recorded and hands out markers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.profiler.json_trace_handler import JSONTraceHandler
from composer.profiler.marker import Marker
from composer.profiler.profiler_action import ProfilerAction
from composer.profiler.system_profiler import SystemProfiler
from composer.profiler.torch_profiler import TorchProfiler
from composer.profiler.trace_handler import TraceHandler
from composer.utils.iter_helpers import ensure_tuple

_RECORDING = (ProfilerAction.WARMUP, ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)


class Profiler(Callback):
    """Profiles a run: give it to ``Trainer(profiler=...)``.

    It records each event of training with the time that each callback and algorithm takes, what the
    program marks with ``state.profiler.marker``, counters of the machine, and torch's own trace.
    The last is recorded if any of ``torch_prof_record_shapes``, ``torch_prof_profile_memory``,
    ``torch_prof_with_stack`` and ``torch_prof_with_flops`` is true.

    Args:
        schedule: Says what to do in a batch; see `cyclic_schedule`.
        trace_handlers: What takes the events, such as a `JSONTraceHandler`.
        sys_prof_cpu: Whether to record the load of the CPU.
        sys_prof_memory: Whether to record the memory of the machine and of CUDA.
        sys_prof_disk: Whether to record what disks do.
        sys_prof_net: Whether to record what the network does.
        sys_prof_stats_thread_interval_seconds: How often these are read.
        torch_prof_folder: Where torch's traces go.
        torch_prof_filename: What they are called.
        torch_prof_remote_file_name: What they are called where a logger uploads them to; None
            uploads none.
        torch_prof_memory_filename: What the memory timeline (HTML) is called; None makes none. It
            needs shapes, memory and stacks.
        torch_prof_memory_remote_file_name: What it is called where a logger uploads it to.
        torch_prof_overwrite: Whether a new run may write over the traces of another.
        torch_prof_use_gzip: Whether to compress torch's traces.
        torch_prof_record_shapes: Whether to record the shapes of operands.
        torch_prof_profile_memory: Whether to record allocations.
        torch_prof_with_stack: Whether to record source lines; this is slow.
        torch_prof_with_flops: Whether to estimate FLOPs.
        torch_prof_num_traces_to_keep: Deletes the oldest of torch's traces beyond so many; -1 keeps
            all.

    Raises:
        ValueError: If a memory timeline is wanted without what it needs.
    """

    def __init__(
        self,
        schedule: Callable[[State], ProfilerAction],
        trace_handlers: TraceHandler | Sequence[TraceHandler],
        sys_prof_cpu: bool = True,
        sys_prof_memory: bool = False,
        sys_prof_disk: bool = False,
        sys_prof_net: bool = False,
        sys_prof_stats_thread_interval_seconds: float = 0.5,
        torch_prof_folder: str = "{run_name}/torch_traces",
        torch_prof_filename: str = "rank{rank}.{batch}.pt.trace.json",
        torch_prof_remote_file_name: str
        | None = "{run_name}/torch_traces/rank{rank}.{batch}.pt.trace.json",
        torch_prof_memory_filename: str | None = None,
        torch_prof_memory_remote_file_name: str
        | None = "{run_name}/torch_memory_traces/rank{rank}.{batch}.pt.memory_trace.html",
        torch_prof_overwrite: bool = False,
        torch_prof_use_gzip: bool = False,
        torch_prof_record_shapes: bool = False,
        torch_prof_profile_memory: bool = True,
        torch_prof_with_stack: bool = False,
        torch_prof_with_flops: bool = True,
        torch_prof_num_traces_to_keep: int = -1,
    ) -> None:
        self.schedule = schedule
        self.state: State | None = None
        self.resumption_batch_idx = 0
        """The batch of its epoch at which the run was resumed, until that epoch has ended."""
        self._trace_handlers = list(ensure_tuple(trace_handlers))
        self._markers: dict[str, Marker] = {}
        self._callbacks: list[Callback] = []
        if sys_prof_cpu or sys_prof_memory or sys_prof_disk or sys_prof_net:
            self._callbacks.append(
                SystemProfiler(
                    profile_cpu=sys_prof_cpu,
                    profile_memory=sys_prof_memory,
                    profile_disk=sys_prof_disk,
                    profile_net=sys_prof_net,
                    stats_thread_interval_seconds=sys_prof_stats_thread_interval_seconds,
                )
            )
        torch_profiler = TorchProfiler(
            folder=torch_prof_folder,
            filename=torch_prof_filename,
            remote_file_name=torch_prof_remote_file_name,
            memory_filename=torch_prof_memory_filename,
            memory_remote_file_name=torch_prof_memory_remote_file_name,
            overwrite=torch_prof_overwrite,
            use_gzip=torch_prof_use_gzip,
            record_shapes=torch_prof_record_shapes,
            profile_memory=torch_prof_profile_memory,
            with_stack=torch_prof_with_stack,
            with_flops=torch_prof_with_flops,
            num_traces_to_keep=torch_prof_num_traces_to_keep,
        )
        if torch_profiler.records_anything:
            self._callbacks.append(torch_profiler)

    @property
    def trace_handlers(self) -> list[TraceHandler]:
        """What takes the events."""
        return self._trace_handlers

    @trace_handlers.setter
    def trace_handlers(self, trace_handlers: TraceHandler | Sequence[TraceHandler]) -> None:
        # In place: markers hold the list.
        self._trace_handlers[:] = ensure_tuple(trace_handlers)

    @property
    def remote_filenames(self) -> list[str]:
        """Where traces are to be uploaded: names, with placeholders, or addresses of stores."""
        names: list[str | None] = []
        for part in (*self._callbacks, *self._trace_handlers):
            if isinstance(part, TorchProfiler):
                names.append(part.remote_file_name)
                names.append(part.memory_remote_file_name if part.memory_filename else None)
            elif isinstance(part, JSONTraceHandler):
                names.append(part.remote_file_name)
                names.append(part.merged_trace_remote_file_name)
        return [name for name in names if name is not None]

    def bind_to_state(self, state: State) -> None:
        """Attaches the profiler to a run and adds it and its parts to the run's callbacks."""
        self.state = state
        self._markers.clear()  # they belong to the run before
        # Torch's trace is handed to the handlers at the end of a batch, so they come after it.
        state.callbacks.extend([self, *self._callbacks, *self._trace_handlers])

    def record_chrome_json_trace_file(self, filepath: str | os.PathLike[str]) -> None:
        """Hands a trace that another profiler wrote in Chrome's format to every handler."""
        for handler in self._trace_handlers:
            handler.process_chrome_json_trace_file(Path(filepath))

    def marker(
        self,
        name: str,
        actions: Sequence[ProfilerAction] = _RECORDING,
        record_instant_on_start: bool = False,
        record_instant_on_finish: bool = False,
        categories: Sequence[str] | Callable[[], Sequence[str]] = (),
        *,
        always: bool = False,
    ) -> Marker:
        """Returns the marker of that name; it is made at the first call, with these settings.

        Args:
            name: The name.
            actions: In which batches it records.
            record_instant_on_start: Whether the start of a span is also recorded as a moment.
            record_instant_on_finish: Whether its end is.
            categories: What it belongs to; or a function that says so.
            always: Whether it records in every batch, whatever ``actions`` says.

        Raises:
            RuntimeError: If the profiler is not part of a run yet.
        """
        marker = self._markers.get(name)
        if marker is not None:
            return marker
        if self.state is None:
            raise RuntimeError(
                f"The profiler belongs to no run yet, so there is no marker {name!r}: give the "
                "profiler to the Trainer, or call bind_to_state first."
            )
        recorded = tuple(ProfilerAction if always else actions)
        marker = self._markers[name] = Marker(
            state=self.state,
            should_record=lambda state: self.schedule(state) in recorded,
            trace_handlers=self._trace_handlers,
            name=name,
            record_instant_on_start=record_instant_on_start,
            record_instant_on_finish=record_instant_on_finish,
            categories=categories,
        )
        return marker

    def after_load(self, state: State, logger: Logger) -> None:
        """Lets the schedule count from where a checkpoint resumed the run."""
        self.resumption_batch_idx = int(state.timestamp.batch_in_epoch)

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Lets the schedule count from the first batch again."""
        self.resumption_batch_idx = 0
