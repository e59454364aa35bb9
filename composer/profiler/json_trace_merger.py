"""Merges the traces of ranks into one; also a program: ``python -m`` and this module's name.

Each rank's clock is moved onto that of rank 0, or of the lowest rank that is there: the ranks noted
the time of the same moment.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

from composer.profiler._trace_format import TraceEvent, read_events, write_events

__all__ = ["merge_traces"]

SYNC_EVENT = "clock_sync_timestamp_us"
RANK_EVENT = "global_rank"
REFERENCE = "rank_zero_value"


@dataclass(frozen=True)
class _Clock:
    """When a rank saw the moment that all ranks saw, in microseconds."""

    rank: int
    synced_at: float
    reference: float | None
    """When rank 0 saw it, if the trace says so."""


def merge_traces(output_file: str | os.PathLike[str], *trace_files: str | os.PathLike[str]) -> None:
    """Merges traces of `JSONTraceHandler`, of one moment or several, into one file.

    Args:
        output_file: The merged trace; it may be one of ``trace_files``.
        trace_files: The traces.

    Raises:
        TypeError: If a file is not a trace.
        ValueError: If there is none.
    """
    if not trace_files:
        raise ValueError("There is nothing to merge: name at least one trace.")
    # One file is in memory at a time: traces with torch's events are large.
    clocks = [_clock(read_events(path)) for path in trace_files]
    known = [clock for clock in clocks if clock is not None]
    lowest = min(known, key=lambda clock: clock.rank, default=None)
    write_events(
        output_file,
        (
            _on_common_clock(read_events(path), clock, lowest)
            for path, clock in zip(trace_files, clocks, strict=True)
        ),
    )


def _clock(events: Sequence[TraceEvent]) -> _Clock | None:
    """Reads out of a trace how its rank's clock stands to those of the others."""
    facts = {event["name"]: event["args"] for event in reversed(events) if event["ph"] == "M"}
    if SYNC_EVENT not in facts:
        return None
    return _Clock(
        rank=int(facts.get(RANK_EVENT, {}).get("value", 0)),
        synced_at=facts[SYNC_EVENT]["value"],
        reference=facts[SYNC_EVENT].get(REFERENCE),
    )


def _on_common_clock(
    events: list[TraceEvent], clock: _Clock | None, lowest: _Clock | None
) -> list[TraceEvent]:
    if clock is None or lowest is None:
        return events
    target = lowest.synced_at if clock.reference is None else clock.reference
    shift = target - clock.synced_at
    for event in events:
        if event["ph"] == "M":
            if event["name"] == SYNC_EVENT:
                event["args"]["value"] = target
        elif shift:
            event["ts"] += shift
    return events


def main(arguments: Sequence[str] | None = None) -> None:
    """Merges the traces that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m composer.profiler.json_trace_merger",
        description="Merges JSON traces of several ranks into one that Perfetto loads.",
    )
    parser.add_argument("-o", "--output", required=True, help="the merged trace")
    parser.add_argument("inputs", nargs="+", help="the traces to merge")
    parsed = parser.parse_args(arguments)
    merge_traces(parsed.output, *parsed.inputs)


if __name__ == "__main__":
    main()
