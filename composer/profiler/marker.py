"""Spans, moments and numbers that a program marks for its profile."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from composer.core.state import State
from composer.profiler.trace_handler import TraceHandler


class Marker:
    """Records a span, a moment or numbers under one name, in the batches that are profiled.

    Get one from ``Profiler.marker``. It is a context manager and a decorator, too:

    .. code-block:: python

        with profiler.marker("tokenize"):
            ...

        @profiler.marker("tokenize")
        def tokenize(texts): ...

    Args:
        state: The run's state.
        should_record: Says whether to record now.
        trace_handlers: Who takes the events.
        name: The name.
        record_instant_on_start: Whether the start of a span is also recorded as a moment.
        record_instant_on_finish: Whether its end is.
        categories: What it belongs to; or a function that says so.
    """

    def __init__(
        self,
        state: State,
        should_record: Callable[[State], bool],
        trace_handlers: Sequence[TraceHandler],
        name: str,
        record_instant_on_start: bool,
        record_instant_on_finish: bool,
        categories: Sequence[str] | Callable[[], Sequence[str]],
    ) -> None:
        self.state = state
        self.should_record = should_record
        self.trace_handlers = trace_handlers
        self.name = name
        self.record_instant_on_start = record_instant_on_start
        self.record_instant_on_finish = record_instant_on_finish
        self.categories = categories
        self.is_started = False
        self._is_recorded = False

    def start(self) -> None:
        """Begins the span.

        Raises:
            RuntimeError: If it has begun already.
        """
        if self.is_started:
            raise RuntimeError(f"The marker {self.name!r} was started twice: finish it first.")
        self.is_started = True
        self._is_recorded = self.should_record(self.state)
        if self._is_recorded:
            self._record_edge(is_start=True, with_instant=self.record_instant_on_start)

    def finish(self) -> None:
        """Ends the span; it is recorded if its start was.

        Raises:
            RuntimeError: If it has not begun.
        """
        if not self.is_started:
            raise RuntimeError(f"The marker {self.name!r} was finished before it was started.")
        self.is_started = False
        if self._is_recorded:
            self._record_edge(is_start=False, with_instant=self.record_instant_on_finish)

    def instant(self) -> None:
        """Records a moment."""
        if self.should_record(self.state):
            self._record_instant(self._now())

    def counter(self, values: dict[str, int | float]) -> None:
        """Records numbers, by name, as they are now."""
        if not self.should_record(self.state):
            return
        now = self._now()
        for handler in self.trace_handlers:
            handler.process_counter_event(**now, values=values)

    def _record_edge(self, *, is_start: bool, with_instant: bool) -> None:
        now = self._now()
        if with_instant:
            self._record_instant(now)
        for handler in self.trace_handlers:
            handler.process_duration_event(**now, is_start=is_start)

    def _record_instant(self, now: dict[str, Any]) -> None:
        for handler in self.trace_handlers:
            handler.process_instant_event(**now)

    def _now(self) -> dict[str, Any]:
        categories = self.categories() if callable(self.categories) else self.categories
        return {
            "name": self.name,
            "categories": list(categories),
            "timestamp": self.state.timestamp,
            "wall_clock_time_ns": time.time_ns(),
        }

    def __enter__(self) -> Marker:
        self.start()
        return self

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        self.finish()

    def __call__(self, func: Callable[..., Any] | None = None) -> Any:
        """Returns a function that runs ``func`` in this span and returns what ``func`` returns."""
        if func is None:  # written as @marker()
            return self

        @functools.wraps(func)
        def marked(*args: Any, **kwargs: Any) -> Any:
            span = copy.copy(self)  # its own, so that the function may call itself
            span.is_started = False
            with span:
                return func(*args, **kwargs)

        return marked
