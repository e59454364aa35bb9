"""Writes everything that is logged, and what the process prints, to a text file."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TextIO

from composer.core.duration import Time
from composer.core.logger import Logger, format_log_data_value
from composer.core.logger_destination import LoggerDestination
from composer.core.state import State
from composer.core.time_unit import TimeUnit
from composer.loggers._text import table_to_json, trace_line
from composer.utils.file_names import format_name_with_dist

_TERMINAL_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class FileLogger(LoggerDestination):
    """Writes metrics, hyperparameters, tables, traces and the process's output to a text file.

    A run that resumes goes on in its file from where the checkpoint was saved: lines of steps that
    will be trained again are cut off, so that each step stands there once. A fresh run that finds
    an earlier run's file moves it aside (``<filename>.1``), unless ``overwrite`` is set.

    Args:
        filename: The file, with placeholders (``{run_name}``, ``{rank}``, ...).
        remote_file_name: Where loggers that can upload files put it; None takes ``filename``.
        capture_stdout: Write what goes to stdout, too.
        capture_stderr: Write what goes to stderr, too.
        buffer_size: As for ``open``: 1 writes line by line.
        log_traces: Write which algorithms ran at which event.
        flush_interval: Every so many batches, flush and upload; a time string may count epochs.
        overwrite: Start the file anew, whatever it holds.
    """

    def __init__(
        self,
        filename: str = "{run_name}/logs-rank{rank}.txt",
        remote_file_name: str | None = None,
        *,
        capture_stdout: bool = True,
        capture_stderr: bool = True,
        buffer_size: int = 1,
        log_traces: bool = True,
        flush_interval: int | str | Time[int] = 100,
        overwrite: bool = False,
    ) -> None:
        self.filename_format = str(filename)
        self.remote_file_name_format = (
            self.filename_format.replace(os.path.sep, "/")
            if remote_file_name is None
            else remote_file_name
        )
        interval = Time.from_input(flush_interval, TimeUnit.BATCH)
        if interval.unit not in (TimeUnit.BATCH, TimeUnit.EPOCH) or interval.value < 1:
            raise ValueError(
                f"flush_interval={flush_interval!r} must be at least one batch or epoch, such as "
                "'100ba' or '1ep'."
            )
        self.flush_interval = interval.value
        self.is_batch_interval = interval.unit == TimeUnit.BATCH
        self.is_epoch_interval = interval.unit == TimeUnit.EPOCH
        self.buffer_size = buffer_size
        self.should_log_traces = log_traces
        self.overwrite = overwrite
        self.file: IO[str] | None = None
        self._run_name: str | None = None
        self._queue: list[str] = []
        self._resume_position: int | None = None
        self._captures = [
            _Capture(stream, f"[{name}]: ", self._write_line)
            for name, stream, wanted in (
                ("stdout", sys.stdout, capture_stdout),
                ("stderr", sys.stderr, capture_stderr),
            )
            if wanted
        ]

    @property
    def filename(self) -> str:
        """The file's path; known from ``Event.INIT`` on."""
        return format_name_with_dist(self.filename_format, self._known_run_name())

    @property
    def remote_file_name(self) -> str:
        """The file's name in remote storage; known from ``Event.INIT`` on."""
        name = format_name_with_dist(self.remote_file_name_format, self._known_run_name())
        return name.lstrip("/")

    def state_dict(self) -> dict[str, Any]:
        """Returns how long the file is, so that a resumed run goes on from here."""
        if self.file is None:
            return {}
        try:
            self.file.flush()
            return {"filename": self.filename, "position": os.path.getsize(self.filename)}
        except (OSError, ValueError):  # a disk that is full of logs must not cost a checkpoint
            return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the place in the file from which the loaded run goes on."""
        if state.get("filename") == self.filename:
            self._resume_position = state["position"]

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Writes the traces, if asked to."""
        if self.should_log_traces:
            for name, value in traces.items():
                self._write_line(trace_line(name, value))

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Writes a line for each hyperparameter."""
        for name, value in hyperparameters.items():
            self._write_line(f"[hyperparameter]: {name}: {format_log_data_value(value)} \n")

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Writes a line for each metric, with the number of the batch."""
        for name, value in metrics.items():
            self._write_line(f"[metric][batch={step}]: {name}: {format_log_data_value(value)} \n")

    def log_table(
        self,
        columns: list[str],
        rows: list[list[Any]],
        name: str = "Table",
        step: int | None = None,
    ) -> None:
        """Writes the table as one line of JSON."""
        del step
        self._write_line(f"[table]: {name}: {table_to_json(columns, rows)}\n")

    def init(self, state: State, logger: Logger) -> None:
        """Opens the file; an earlier run's waits until it is known whether this one resumes."""
        del logger
        if self.file is not None:
            raise RuntimeError(
                f"{self.filename} is already open: give each Trainer its own FileLogger."
            )
        self._run_name = state.run_name
        Path(self.filename).parent.mkdir(parents=True, exist_ok=True)
        if self.overwrite or not _has_content(self.filename):
            self._open("w")

    def after_load(self, state: State, logger: Logger) -> None:
        """Continues, or moves aside, the file of an earlier run."""
        if self._resume_position is not None and self.file is None:
            if os.path.getsize(self.filename) >= self._resume_position:
                os.truncate(self.filename, self._resume_position)
            self._open("a")
        self._open_if_waiting(state)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Makes sure that the file is open."""
        self._open_if_waiting(state)

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Flushes and uploads."""
        self._flush(state, logger)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Flushes and uploads, if this batch is due."""
        if self.is_batch_interval and state.timestamp.batch.value % self.flush_interval == 0:
            self._flush(state, logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Flushes and uploads, if this epoch is due."""
        if self.is_epoch_interval and state.timestamp.epoch.value % self.flush_interval == 0:
            self._flush(state, logger)

    def eval_start(self, state: State, logger: Logger) -> None:
        """Flushes and uploads."""
        self._flush(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Flushes and uploads."""
        self._flush(state, logger)

    def close(self, state: State, logger: Logger) -> None:
        """Uploads and closes the file, and stops listening to the process's output."""
        for capture in self._captures:
            capture.stop()
        if self._run_name is None:
            return  # never initialised: there is no file
        self._flush(state, logger)
        if self.file is not None:
            self.file.close()
            self.file = None

    def write(self, prefix: str, s: str) -> None:
        """Writes text with ``prefix`` at the start of each line."""
        for line in s.splitlines():
            self._write_line(f"{prefix}{line}\n")

    def _known_run_name(self) -> str:
        if self._run_name is None:
            raise RuntimeError("The name of FileLogger's file is not known before Event.INIT.")
        return self._run_name

    def _write_line(self, line: str) -> None:
        if self.file is None:
            self._queue.append(line)
        else:
            self.file.write(line)

    def _open(self, mode: str) -> None:
        self.file = open(self.filename, mode, buffering=self.buffer_size, encoding="utf-8")
        self.file.writelines(self._queue)
        self._queue.clear()

    def _open_if_waiting(self, state: State) -> None:
        if self.file is not None:
            return
        if state.timestamp.batch.value == 0:
            _move_aside(self.filename)
        self._open("a")

    def _flush(self, state: State, logger: Logger) -> None:
        self._open_if_waiting(state)
        assert self.file is not None
        self.file.flush()
        logger.upload_file(self.remote_file_name, self.filename, overwrite=True)


def _has_content(path: str) -> bool:
    return os.path.exists(path) and os.path.getsize(path) > 0


def _move_aside(path: str) -> None:
    """Renames an earlier file to the first free ``<path>.<number>``."""
    if not _has_content(path):
        return
    number = 1
    while os.path.exists(f"{path}.{number}"):
        number += 1
    os.rename(path, f"{path}.{number}")


class _Capture:
    """Hears what is written to a stream, line by line, as a terminal would show it in the end."""

    def __init__(self, stream: TextIO, prefix: str, write_line: Callable[[str], None]) -> None:
        self._stream = stream
        self._prefix = prefix
        self._write_line = write_line
        self._unfinished = ""
        self._is_listening = True
        self._was_wrapped = "write" in getattr(stream, "__dict__", {})
        self._original = original = stream.write

        def write(text: str) -> int:
            if self._is_listening:
                self._hear(text)
            return original(text)

        # Who wants to write past the recording (the frames of a progress bar) finds the way here.
        write.__wrapped__ = original  # pyright: ignore[reportFunctionMemberAccess]
        self._write = write
        stream.write = write

    def stop(self) -> None:
        """Leaves the stream as it was found, unless somebody else has wrapped it since."""
        if self._is_listening and self._unfinished:
            self._hear("\n")
        self._is_listening = False
        if getattr(self._stream, "write", None) is not self._write:
            return
        if self._was_wrapped:
            self._stream.write = self._original
        else:
            del self._stream.write

    def _hear(self, text: str) -> None:
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        for line in lines:
            # A carriage return starts the line anew: only its last form counts.
            shown = _TERMINAL_CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2])
            self._write_line(f"{self._prefix}{shown}\n")
        self._unfinished = self._unfinished.rpartition("\r")[2]
