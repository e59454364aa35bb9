"""Chrome's trace event format: reading it, writing it, and telling whose events are whose.

A trace is a JSON array of events, or an object with one under ``traceEvents``. Times (``ts``) are
microseconds of the wall clock here; processes (``pid``) are ranks, and threads (``tid``) are the
numbers that the operating system gave them.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from composer.checkpoint.atomic import written_aside

TraceEvent = dict[str, Any]

_FIRST_FOREIGN_ID = 2**30
_NS_PER_US = 1000


def read_events(path: str | os.PathLike[str]) -> list[TraceEvent]:
    """Reads the events of a trace, gzipped or not, with times of the wall clock.

    Raises:
        TypeError: If the file is JSON, but not a trace.
    """
    name = os.fspath(path)
    opened = gzip.open if name.endswith(".gz") else open
    with opened(name, "rt", encoding="utf-8", errors="replace") as file:
        trace = json.load(file, strict=False)
    events = trace.get("traceEvents") if isinstance(trace, dict) else trace
    if not isinstance(events, list):
        raise TypeError(
            f"{name} is not a trace: a JSON array of events is needed, or an object with one under "
            f"'traceEvents'; it is a {type(trace).__name__}."
        )
    # Torch counts from a base that it names, to save digits.
    base = trace.get("baseTimeNanoseconds", 0) / _NS_PER_US if isinstance(trace, dict) else 0
    if base:
        for event in events:
            if "ts" in event:
                event["ts"] += base
    return events


def write_events(path: str | os.PathLike[str], traces: Iterable[Iterable[TraceEvent]]) -> None:
    """Writes traces into one file, an event a line; it appears whole.

    Within each trace events are put into the order of time; facts about processes and threads come
    first, and a fact that is stated twice is written once.
    """
    seen: set[str] = set()
    separator = "[\n"
    with written_aside(path) as aside, open(aside, "w", encoding="utf-8") as file:
        for trace in traces:
            for event in sorted(trace, key=_order):
                text = json.dumps(event, allow_nan=False, separators=(",", ":"))
                if event["ph"] == "M":
                    if text in seen:
                        continue
                    seen.add(text)
                file.write(separator + text)
                separator = ",\n"
        file.write("\n]\n" if seen or separator != "[\n" else "[]\n")


def _order(event: TraceEvent) -> float:
    return -1.0 if event["ph"] == "M" else event["ts"]


def fact(name: str, value: Any, *, pid: Any, tid: Any = 0, key: str = "value") -> TraceEvent:
    """Returns a metadata event: a fact about a process or a thread."""
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": {key: value}}


def adopted(events: Sequence[TraceEvent], rank: int) -> list[TraceEvent]:
    """Returns another profiler's events with ids that are nobody else's.

    Torch numbers GPUs from 0 in every trace, as ranks are, gives some processes and threads names
    instead of numbers, and numbers its arrows from 1 in every trace.
    """
    tracks = {(event.get("pid", 0), event.get("tid", 0)) for event in events}
    names = [
        fact("process_name", pid, pid=pid, key="name") for pid, _ in tracks if isinstance(pid, str)
    ] + [
        fact("thread_name", tid, pid=pid, tid=tid, key="name")
        for pid, tid in tracks
        if isinstance(tid, str)
    ]
    return [_adopt(event, rank) for event in (*names, *events)]


def _adopt(event: TraceEvent, rank: int) -> TraceEvent:
    pid, tid = event.get("pid", 0), event.get("tid", 0)
    adopted = {**event, "pid": _number(f"{rank}/{pid}"), "tid": tid}
    if not isinstance(tid, int):
        adopted["tid"] = _number(str(tid))
    if "id" in event:
        number = event["id"] if isinstance(event["id"], int) else _number(event["id"])
        adopted["id"] = (rank << 32) + number
    if event.get("ph") == "M":
        adopted.pop("ts", None)
        arguments = event.get("args", {})
        if event.get("name") == "process_name":
            adopted["args"] = {**arguments, "name": f"rank {rank}: {arguments.get('name', pid)}"}
        elif event.get("name") == "process_sort_index":
            adopted["args"] = {**arguments, "sort_index": rank}
    return adopted


def _number(text: str) -> int:
    """Returns an id of 31 bits, the same for the same text in every file, and above every rank."""
    return _FIRST_FOREIGN_ID + zlib.crc32(text.encode()) % _FIRST_FOREIGN_ID
