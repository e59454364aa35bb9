import gzip
import json
import subprocess
import sys

import pytest

from composer.profiler.json_trace_merger import main, merge_traces
from tests.composer.profiler.traces import read_trace


def write(path, rank, synced_at, times, reference=None):
    sync = {"value": synced_at} | ({} if reference is None else {"rank_zero_value": reference})
    facts = {"global_rank": {"value": rank}, "clock_sync_timestamp_us": sync}
    events = [
        *({"name": n, "ph": "M", "pid": rank, "tid": 0, "args": a} for n, a in facts.items()),
        *({"name": "x", "ph": "i", "s": "p", "pid": rank, "tid": 0, "ts": ts} for ts in times),
    ]
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt") as file:
        json.dump(events, file)
    return path


def times(events):
    return sorted((event["pid"], event["ts"]) for event in events if event["ph"] == "i")


def test_clocks_are_moved_onto_that_of_the_lowest_rank(tmp_path):
    b = write(tmp_path / "b.json", 2, 1000, [1010, 1005])
    a = write(tmp_path / "a.json.gz", 1, 100, [110])
    merge_traces(tmp_path / "out.json", b, a)
    assert times(read_trace(tmp_path / "out.json")) == [(1, 110), (2, 105), (2, 110)]
    # What is merged already stays where it is.
    c = write(tmp_path / "c.json", 3, 50, [55])
    merge_traces(tmp_path / "out.json", tmp_path / "out.json", c)
    events = read_trace(tmp_path / "out.json")
    assert times(events) == [(1, 110), (2, 105), (2, 110), (3, 105)]
    clocks = [event for event in events if event["name"] == "clock_sync_timestamp_us"]
    assert [event["args"]["value"] for event in clocks] == [100, 100, 100]


def test_ranks_of_other_nodes_and_moments_come_onto_rank_zeros_clock(tmp_path):
    first = write(tmp_path / "a.json", 1, 100, [101], reference=1000)
    resumed = write(tmp_path / "b.json", 1, 900, [901], reference=5000)
    merge_traces(tmp_path / "out.json", first, resumed)
    assert times(read_trace(tmp_path / "out.json")) == [(1, 1001), (1, 5001)]


def test_traces_without_clocks_are_joined_as_they_are(tmp_path):
    path = tmp_path / "torch.json"
    event = {"name": "op", "ph": "X", "pid": 7, "tid": 7, "ts": 2.0, "dur": 1.0}
    path.write_text(json.dumps({"traceEvents": [event], "baseTimeNanoseconds": 5_000_000}))
    merge_traces(tmp_path / "out.json", path, write(tmp_path / "a.json", 0, 1, [3]))
    (moved,) = [event for event in read_trace(tmp_path / "out.json") if event["ph"] == "X"]
    assert moved["ts"] == 5002.0


def test_nothing_to_merge(tmp_path):
    with pytest.raises(ValueError, match="nothing to merge"):
        merge_traces(tmp_path / "out.json")
    path = tmp_path / "empty.json"
    path.write_text("[]")
    merge_traces(tmp_path / "out.json", path)
    assert read_trace(tmp_path / "out.json") == []


def test_program(tmp_path):
    files = [str(write(tmp_path / f"{rank}.json", rank, 10, [11])) for rank in range(2)]
    main(["-o", str(tmp_path / "a.json"), *files])
    command = [sys.executable, "-W", "error", "-m", "composer.profiler.json_trace_merger"]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "b.json"), *files], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert read_trace(tmp_path / "a.json") == read_trace(tmp_path / "b.json")
