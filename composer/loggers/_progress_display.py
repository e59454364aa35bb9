"""How progress is drawn: bars where there is a terminal, plain lines where there is none."""

import os
import time
from dataclasses import dataclass, field
from typing import Any, TextIO


@dataclass(frozen=True)
class Progress:
    """How far something is, and what to tell beside it."""

    label: str
    """What it is, such as ``train`` or an evaluator's label."""
    done: int
    total: int | None
    unit: str
    facts: dict[str, str] = field(default_factory=dict)
    """Short names and formatted values."""

    @property
    def facts_text(self) -> str:
        """All facts in one line."""
        return "  ".join(f"{name} {value}" for name, value in self.facts.items())

    @property
    def count_text(self) -> str:
        """Such as ``12/300 ba``; without a total, ``12 ba``."""
        total = "" if self.total is None else f"/{self.total}"
        return f"{self.done}{total} {self.unit}"


class LineDisplay:
    """Writes one plain line now and then, without any control character.

    The first line comes at once; the pause between two grows with the run, from 10 to 60 seconds.
    """

    MIN_PAUSE_SECONDS = 10.0
    MAX_PAUSE_SECONDS = 60.0

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._started = time.monotonic()
        self._next_line = self._started

    def is_due(self) -> bool:
        """Says whether it is time for another line."""
        return time.monotonic() >= self._next_line

    def show(self, progress: Progress) -> None:
        """Writes a line."""
        self.print(self._line(progress))
        now = time.monotonic()
        pause = (now - self._started) / 100
        self._next_line = now + min(max(pause, self.MIN_PAUSE_SECONDS), self.MAX_PAUSE_SECONDS)

    def finish(self, progress: Progress) -> None:
        """Writes the last line of something."""
        self.print(self._line(progress))

    def print(self, text: str) -> None:
        """Writes text that is no progress."""
        self.stream.write(text + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Has nothing to restore."""

    @staticmethod
    def _line(progress: Progress) -> str:
        percent = f" ({progress.done / progress.total:.0%})" if progress.total else ""
        return f"{progress.label} {progress.count_text}{percent}  {progress.facts_text}".rstrip()


class BarDisplay:
    """Draws bars on a terminal, one for each thing that is under way."""

    PAUSE_SECONDS = 0.2

    def __init__(self, stream: TextIO) -> None:
        # Here, because rich is needed only where there is a terminal.
        from rich import progress as rich_progress
        from rich.console import Console
        from rich.table import Column

        # A stream that is recorded into a file gets its text, but not the frames of the bars.
        recorder = getattr(stream.write, "__wrapped__", None)
        file: Any = stream if recorder is None else _Unrecorded(stream)
        console = Console(file=file)
        self._bars = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(bar_width=20),
            rich_progress.TextColumn("{task.fields[count]}", markup=False),
            rich_progress.TextColumn(
                "{task.fields[facts]}", markup=False, table_column=Column(no_wrap=True, ratio=1)
            ),
            console=console,
            auto_refresh=False,
            redirect_stdout=recorder is None,
            redirect_stderr=recorder is None,
            expand=True,
        )
        self._tasks: dict[str, Any] = {}
        self._next_frame = 0.0
        self._is_running = False

    def is_due(self) -> bool:
        """Says whether it is time for another frame."""
        return time.monotonic() >= self._next_frame

    def show(self, progress: Progress) -> None:
        """Draws a frame."""
        if not self._is_running:
            self._bars.start()
            self._is_running = True
        if progress.label not in self._tasks:
            self._tasks[progress.label] = self._bars.add_task(progress.label, count="", facts="")
        self._bars.update(
            self._tasks[progress.label],
            completed=progress.done,
            total=progress.total,
            count=progress.count_text,
            facts=progress.facts_text,
        )
        self._bars.refresh()
        self._next_frame = time.monotonic() + self.PAUSE_SECONDS

    def finish(self, progress: Progress) -> None:
        """Replaces a bar by a line that stays."""
        if progress.label in self._tasks:
            self._bars.remove_task(self._tasks.pop(progress.label))
            self._bars.refresh()  # or the line would have the bar drawn once more below it
        self.print(f"{progress.label} {progress.count_text}  {progress.facts_text}".rstrip())
        if not self._tasks:
            self.close()

    def print(self, text: str) -> None:
        """Writes text above the bars."""
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Gives the terminal back."""
        if self._is_running:
            self._bars.stop()
            self._is_running = False


class _Unrecorded:
    """A stream seen past whoever records what is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return getattr(self._stream.write, "__wrapped__", self._stream.write)(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def make_display(stream: TextIO) -> LineDisplay | BarDisplay:
    """Returns bars for a terminal that can move its cursor, else plain lines."""
    is_terminal = getattr(stream, "isatty", lambda: False)()
    if is_terminal and os.environ.get("TERM", "").lower() not in ("dumb", "unknown"):
        return BarDisplay(stream)
    return LineDisplay(stream)
