"""Writes the profiler's events to JSON traces, and merges those of the ranks of a node."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path

from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time import Timestamp
from composer.profiler._trace_files import (
    SavedTraces,
    delete_old_traces,
    profiler_of,
    refuse_traces_of_other_runs,
    trace_path,
    upload_trace,
)
from composer.profiler._trace_format import TraceEvent, adopted, fact, read_events, write_events
from composer.profiler.json_trace_merger import RANK_EVENT, REFERENCE, SYNC_EVENT, merge_traces
from composer.profiler.profiler_action import ProfilerAction
from composer.profiler.trace_handler import TraceHandler
from composer.utils import dist

_NS_PER_US = 1000


class JSONTraceHandler(TraceHandler):
    """Writes what the profiler records as JSON, for https://ui.perfetto.dev or ``chrome://tracing``.

    Each rank writes a file at the end of each cycle of the schedule; spans that are open then are
    closed in that file and begin anew in the next, so that each file stands for itself. The first
    rank of each node adds them to one merged trace.

    Args:
        folder: Where the traces go.
        filename: What they are called.
        remote_file_name: What they are called where a logger uploads them to; None uploads none.
        merged_trace_filename: What the merged trace is called; None makes none. With several nodes
            ``_node<number>`` is added, unless the name says ``{node_rank}``.
        merged_trace_remote_file_name: What it is called where a logger uploads it to.
        overwrite: Whether a new run may write over the traces of another.
        num_traces_to_keep: Deletes each rank's oldest traces beyond so many; -1 keeps all. The
            merged trace keeps everything.
    """

    def __init__(
        self,
        folder: str = "{run_name}/traces",
        filename: str = "ep{epoch}-ba{batch}-rank{rank}.json",
        remote_file_name: str | None = "{run_name}/traces/ep{epoch}-ba{batch}-rank{rank}.json",
        merged_trace_filename: str | None = "merged_trace.json",
        merged_trace_remote_file_name: str | None = "{run_name}/traces/merged_trace.json",
        *,
        overwrite: bool = False,
        num_traces_to_keep: int = -1,
    ) -> None:
        self.folder = folder
        self.overwrite = overwrite
        self.filename = filename
        self.remote_file_name = remote_file_name
        self.merged_trace_filename = merged_trace_filename
        self.merged_trace_remote_file_name = merged_trace_remote_file_name
        self.saved_traces: SavedTraces = []
        """The traces that were saved and kept, oldest first, with the time of each."""
        self.num_traces_to_keep = num_traces_to_keep
        self._events: list[TraceEvent] = []
        self._open_spans: dict[int, list[TraceEvent]] = {}
        self._last_ts: dict[int, float] = {}
        self._threads: dict[int, str] = {}
        self._clock_facts: list[TraceEvent] = []
        self._action = ProfilerAction.SKIP
        self._has_unsaved_batches = False

    def init(self, state: State, logger: Logger) -> None:
        """Notes how this rank's clock stands to rank 0's.

        Raises:
            RuntimeError: If the run has no profiler.
        """
        profiler_of(state, self)
        self._clock_facts = _synchronize_clocks()

    def after_load(self, state: State, logger: Logger) -> None:
        """Refuses to write over the traces of another run."""
        if not self.overwrite:
            refuse_traces_of_other_runs(state, self.folder, self._local_names())
        elif state.timestamp.batch == 0 and dist.get_local_rank() == 0:
            merged = self._merged_path(state)
            if merged is not None:
                merged.unlink(missing_ok=True)  # it would grow by the traces of this run

    def batch_start(self, state: State, logger: Logger) -> None:
        """Asks what to do in this batch.

        Raises:
            RuntimeError: If the run has no profiler.
        """
        self._action = profiler_of(state, self).schedule(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Saves, if this batch was the last of its cycle."""
        # The batch is counted by now, so the schedule would speak of the next one.
        if self._action is ProfilerAction.SKIP:
            return
        self._has_unsaved_batches = True
        is_time = self._action is ProfilerAction.ACTIVE_AND_SAVE
        if self._action is not ProfilerAction.WARMUP and self.merged_trace_filename is not None:
            # The ranks merge together, but one with a shorter loader sees its epoch end earlier.
            is_time = any(dist.all_gather_object(is_time))
        if is_time:
            self._save(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Saves what training left unsaved."""
        if self._has_unsaved_batches:
            self._save(state, logger)

    def close(self, state: State, logger: Logger) -> None:
        """Writes what an error left unsaved; other ranks may be gone, so nothing is merged."""
        if self._has_unsaved_batches:
            self._write(state)

    def process_duration_event(
        self,
        name: str,
        categories: list[str] | tuple[str, ...],
        is_start: bool,
        timestamp: Timestamp,
        wall_clock_time_ns: int,
    ) -> None:
        """Begins or ends a span; with it, spans that were begun within it end."""
        event = self._event("B", name, categories, timestamp, wall_clock_time_ns)
        spans = self._open_spans.setdefault(event["tid"], [])
        if is_start:
            spans.append(event)
            self._events.append(event)
            return
        while any(span["name"] == name for span in spans):
            ended = spans.pop()
            self._events.append(_end_of(ended, event["ts"]))
            if ended["name"] == name:
                return

    def process_instant_event(
        self,
        name: str,
        categories: list[str] | tuple[str, ...],
        timestamp: Timestamp,
        wall_clock_time_ns: int,
    ) -> None:
        """Keeps a moment."""
        event = self._event("i", name, categories, timestamp, wall_clock_time_ns)
        self._events.append({**event, "s": "p"})

    def process_counter_event(
        self,
        name: str,
        categories: list[str] | tuple[str, ...],
        timestamp: Timestamp,
        wall_clock_time_ns: int,
        values: dict[str, int | float],
    ) -> None:
        """Keeps numbers; those that are not finite have no place in JSON and are dropped."""
        event = self._event("C", name, categories, timestamp, wall_clock_time_ns)
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        self._events.append({**event, "args": finite})

    def process_chrome_json_trace_file(self, filepath: Path) -> None:
        """Takes another profiler's trace into this rank's next file.

        Raises:
            TypeError: If the file is not a trace.
        """
        self._events.extend(adopted(read_events(filepath), dist.get_global_rank()))

    def _event(
        self,
        phase: str,
        name: str,
        categories: list[str] | tuple[str, ...],
        timestamp: Timestamp,
        wall_clock_time_ns: int,
    ) -> TraceEvent:
        tid = threading.get_native_id()
        if tid not in self._threads:
            self._threads[tid] = threading.current_thread().name
        # The clock of the machine may be set back; the events of a thread stay in order.
        ts = max(wall_clock_time_ns / _NS_PER_US, self._last_ts.get(tid, 0.0))
        self._last_ts[tid] = ts
        return {
            "name": name,
            "cat": ",".join(categories),
            "ph": phase,
            "ts": ts,
            "pid": dist.get_global_rank(),
            "tid": tid,
            "args": {"epoch": timestamp.epoch.value, "batch": timestamp.batch.value},
        }

    def _save(self, state: State, logger: Logger) -> None:
        path = self._write(state)
        upload_trace(state, logger, self.remote_file_name, path, overwrite=self.overwrite)
        if self.merged_trace_filename is not None:
            self._merge(state, logger, path)
        self.saved_traces.append((state.timestamp, [path]))
        delete_old_traces(self.saved_traces, self.num_traces_to_keep)

    def _write(self, state: State) -> Path:
        events = self._take_events()
        path = trace_path(state, self.folder, self.filename)
        write_events(path, [[*self._facts(), *events]])
        self._has_unsaved_batches = False
        return path

    def _take_events(self) -> list[TraceEvent]:
        """Takes the events so far; spans that are open are cut in two here."""
        events, self._events = self._events, []
        now = time.time_ns() / _NS_PER_US
        for tid, spans in self._open_spans.items():
            ts = self._last_ts[tid] = max(now, self._last_ts[tid])
            events.extend(_end_of(span, ts) for span in reversed(spans))
            self._events.extend({**span, "ts": ts} for span in spans)
        return events

    def _facts(self) -> list[TraceEvent]:
        rank = dist.get_global_rank()
        facts = [
            fact("process_name", f"rank {rank}", pid=rank, key="name"),
            fact("process_sort_index", rank, pid=rank, key="sort_index"),
            fact(RANK_EVENT, rank, pid=rank),
            *self._clock_facts,
        ]
        for order, (tid, name) in enumerate(self._threads.items()):
            facts.append(fact("thread_name", name, pid=rank, tid=tid, key="name"))
            facts.append(fact("thread_sort_index", order, pid=rank, tid=tid, key="sort_index"))
        return facts

    def _merge(self, state: State, logger: Logger, path: Path) -> None:
        """Adds the new traces of this node's ranks to its merged trace."""
        traces = dist.all_gather_object((dist.get_node_rank(), str(path)))
        if dist.get_local_rank() == 0:
            merged = self._merged_path(state)
            assert merged is not None
            mine = [trace for node, trace in traces if node == dist.get_node_rank()]
            merge_traces(merged, *([merged] if merged.exists() else []), *mine)
            remote_name = self._of_node(self.merged_trace_remote_file_name)
            upload_trace(state, logger, remote_name, merged, overwrite=True)
        dist.barrier()  # nobody deletes a trace that is still to be merged

    def _merged_path(self, state: State) -> Path | None:
        name = self._of_node(self.merged_trace_filename)
        return None if name is None else trace_path(state, self.folder, name)

    def _of_node(self, name: str | None) -> str | None:
        """Makes a name this node's own: nodes may share a file system, and always share a store."""
        if name is None or dist.get_world_size() == dist.get_local_world_size():
            return name
        if "{node_rank}" in name or "{rank}" in name:
            return name
        stem, extension = os.path.splitext(name)
        return f"{stem}_node{{node_rank}}{extension}"

    def _local_names(self) -> list[str]:
        merged = self._of_node(self.merged_trace_filename)
        return [self.filename] if merged is None else [self.filename, merged]


def _end_of(span: TraceEvent, ts: float) -> TraceEvent:
    return {**span, "ph": "E", "ts": ts}


def _synchronize_clocks() -> list[TraceEvent]:
    """Lets all ranks note the time of one moment, and how far they may be apart in it."""
    dist.barrier()
    before = time.time_ns()
    dist.barrier()
    synced_at = time.time_ns() / _NS_PER_US
    dist.barrier()
    error_bound = (time.time_ns() - before) / _NS_PER_US
    rank = dist.get_global_rank()
    reference = dist.all_gather_object(synced_at)[0]
    sync = fact(SYNC_EVENT, synced_at, pid=rank)
    sync["args"][REFERENCE] = reference
    return [sync, fact("clock_sync_error_bound", error_bound, pid=rank)]
