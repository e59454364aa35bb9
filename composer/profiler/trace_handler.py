"""The interface of what takes the profiler's events."""

from abc import ABC
from pathlib import Path

from composer.core.callback import Callback
from composer.core.time import Timestamp


class TraceHandler(Callback, ABC):
    """Takes what markers record: override what it can store; everything else is dropped.

    Events of one thread arrive in order. Counters arrive on the system profiler's own thread too.
    """

    def process_duration_event(
        self,
        name: str,
        categories: list[str] | tuple[str, ...],
        is_start: bool,
        timestamp: Timestamp,
        wall_clock_time_ns: int,
    ) -> None:
        """Takes the start or the end of a span.

        Args:
            name: The span's name.
            categories: What it belongs to.
            is_start: Whether it starts now.
            timestamp: Where training stands.
            wall_clock_time_ns: The time of the clock.
        """

    def process_instant_event(
        self,
        name: str,
        categories: list[str] | tuple[str, ...],
        timestamp: Timestamp,
        wall_clock_time_ns: int,
    ) -> None:
        """Takes a moment; arguments as for spans."""

    def process_counter_event(
        self,
        name: str,
        categories: list[str] | tuple[str, ...],
        timestamp: Timestamp,
        wall_clock_time_ns: int,
        values: dict[str, int | float],
    ) -> None:
        """Takes numbers, by name, as they are at a moment; other arguments as for spans."""

    def process_chrome_json_trace_file(self, filepath: Path) -> None:
        """Takes a whole trace that another profiler wrote in Chrome's format."""
