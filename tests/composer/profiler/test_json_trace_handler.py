import json
import time
from pathlib import Path

import pytest

from composer.core.callback import Callback
from composer.core.time import Timestamp
from composer.profiler import JSONTraceHandler, cyclic_schedule
from composer.utils import dist
from tests.composer.plugins import HandRun
from tests.composer.profiler.traces import (
    Keeper,
    make_profiler,
    make_trainer,
    named,
    parents,
    profiled,
    read_trace,
)
from tests.launch import run_ranks


class Works(Callback):
    """Marks its own work."""

    def before_forward(self, state, logger):
        if state.profiler is None:
            return
        with state.profiler.marker("work", categories=["mine"]):
            state.profiler.marker("numbers").counter({"a": 1.5, "bad": float("nan")})
        state.profiler.marker("now").instant()


def test_a_run_is_recorded_with_spans_nested_rightly(tmp_path):
    profiler = make_profiler(tmp_path, cyclic_schedule(wait=1, warmup=1, active=2))
    profiled(profiler, max_duration="2ep", callbacks=Works())
    (handler,) = profiler.trace_handlers
    names = [path.name for _time, paths in handler.saved_traces for path in paths]
    assert names == ["ep0-ba4-rank0.json", "ep1-ba10-rank0.json"]
    for _time, paths in handler.saved_traces:
        assert named(read_trace(paths[0]), "event/train_batch", "B")
    events = read_trace(tmp_path / "traces/merged_trace.json")
    assert {
        ("event/fit", "event/epoch"),
        ("event/epoch", "event/dataloader"),
        ("event/epoch", "event/batch"),
        ("event/batch", "event/train_batch"),
        ("event/train_batch", "event/forward"),
        ("event/train_batch", "event/backward"),
        ("event/forward", "callback/Works/event/before_forward"),
        ("callback/Works/event/before_forward", "work"),
    } <= parents(events)
    trained = [event["args"] for event in named(events, "event/train_batch", "B")]
    # The warm-up is recorded here; only torch's profiler throws it away.
    assert [args["batch"] for args in trained] == [1, 2, 3, 7, 8, 9]
    assert [args["epoch"] for args in trained] == [0, 0, 0, 1, 1, 1]
    assert named(events, "work", "B")[0]["cat"] == "mine"
    assert named(events, "numbers", "C")[0]["args"] == {"a": 1.5}
    assert len(named(events, "now", "i")) == 6
    assert {event["args"]["name"] for event in named(events, "process_name", "M")} == {"rank 0"}
    for fact in ("thread_name", "thread_sort_index", "process_sort_index", "global_rank"):
        assert named(events, fact, "M")
    for fact in ("clock_sync_timestamp_us", "clock_sync_error_bound"):
        assert named(events, fact, "M")


def test_torch_events_are_in_it_under_ids_of_their_own(tmp_path):
    profiled(make_profiler(tmp_path, torch_prof_record_shapes=True))
    events = read_trace(tmp_path / "traces/merged_trace.json")
    operators = named(events, "aten::addmm", "X")
    assert operators and {event["pid"] for event in operators}.isdisjoint({0})
    span = named(events, "event/batch", "B")[0], named(events, "event/batch", "E")[-1]
    inside = [event for event in operators if span[0]["ts"] < event["ts"] < span[1]["ts"]]
    assert len(inside) == len(operators)  # both clocks are the wall clock
    names = {event["args"]["name"] for event in named(events, "process_name", "M")}
    assert {"rank 0", "rank 0: python"} <= names
    assert {event["id"] for event in events if event["ph"] == "s"}


def test_what_the_end_of_training_cuts_off_is_saved(tmp_path):
    profiler = make_profiler(tmp_path, cyclic_schedule(warmup=0, active=100))
    profiled(profiler, max_duration="3ba")
    assert len(named(read_trace(tmp_path / "traces/ep0-ba3-rank0.json"), "event/loss", "B")) == 3


def test_what_an_error_cuts_off_is_written(tmp_path):
    class Fails(Callback):
        def after_loss(self, state, logger):
            if int(state.timestamp.batch) == 2:
                raise RuntimeError("broken")

    trainer = make_trainer(
        make_profiler(tmp_path, cyclic_schedule(warmup=0, active=100)), callbacks=Fails()
    )
    with pytest.raises(RuntimeError, match="broken"):
        trainer.fit()
    trainer.close()
    assert len(named(read_trace(tmp_path / "traces/ep0-ba2-rank0.json"), "event/loss", "B")) == 3
    assert not (tmp_path / "traces/merged_trace.json").exists()


def test_only_so_many_traces_are_kept(tmp_path):
    handler = JSONTraceHandler(f"{tmp_path}/traces", num_traces_to_keep=1)
    profiled(make_profiler(tmp_path, cyclic_schedule(0, 0, 0, 2, 3), handler))
    assert {path.name for path in (tmp_path / "traces").iterdir()} == {
        "ep0-ba6-rank0.json",
        "merged_trace.json",
    }
    assert len(named(read_trace(tmp_path / "traces/merged_trace.json"), "event/loss", "B")) == 6


def test_uploads_only_where_a_destination_keeps_files(tmp_path):
    handler = JSONTraceHandler(f"{tmp_path}/traces", remote_file_name="{run_name}/{batch}")
    keeper = Keeper(tmp_path / "kept")
    profiled(
        make_profiler(tmp_path, cyclic_schedule(0, 0, 0, 1, 2), handler),
        loggers=keeper,
        run_name="r",
    )
    kept = {path.relative_to(keeper.folder).as_posix() for path in keeper.folder.rglob("*.json")}
    assert kept == {"r/traces/merged_trace.json"}
    assert {path.name for path in (keeper.folder / "r").iterdir()} == {"1", "2", "traces"}
    merged = keeper.folder / "r/traces/merged_trace.json"
    assert merged.read_text() == (tmp_path / "traces/merged_trace.json").read_text()


def test_addresses_get_an_uploader(tmp_path):
    address = f"file://{tmp_path}/kept/"
    handler = JSONTraceHandler(
        f"{tmp_path}/traces",
        remote_file_name=address + "ba{batch}.json",
        merged_trace_remote_file_name=address + "merged.json",
    )
    profiled(make_profiler(tmp_path, None, handler))
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"ba2.json", "merged.json"}


def test_traces_of_another_run_are_not_written_over(tmp_path):
    profiled(make_profiler(tmp_path))
    with pytest.raises(FileExistsError, match=r"(?s)On rank 0.*set overwrite=True"):
        make_trainer(make_profiler(tmp_path))
    handler = JSONTraceHandler(f"{tmp_path}/traces", overwrite=True)
    profiled(make_profiler(tmp_path, None, handler))
    assert len(named(read_trace(tmp_path / "traces/merged_trace.json"), "event/loss", "B")) == 2


def test_it_needs_a_profiler():
    with pytest.raises(RuntimeError, match="JSONTraceHandler works in a run with a profiler only"):
        HandRun(JSONTraceHandler())


def test_a_clock_that_is_set_back_and_spans_that_cross(tmp_path):
    handler, now = JSONTraceHandler(f"{tmp_path}/t"), time.time_ns()
    edges = [("a", True, 0), ("b", True, -500), ("a", False, -400), ("b", False, 10)]
    for name, is_start, offset in edges:
        handler.process_duration_event(name, [], is_start, Timestamp(), now + offset * 1000)
    run = HandRun()
    events = read_trace(handler._write(run.state))
    assert [(event["ph"], event["name"]) for event in events if event["ph"] in "BE"] == [
        ("B", "a"),
        ("B", "b"),
        ("E", "b"),
        ("E", "a"),
    ]


def test_a_file_that_is_no_trace(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('"text"')
    with pytest.raises(TypeError, match="not a trace"):
        JSONTraceHandler().process_chrome_json_trace_file(path)


def _profile_rank(folder):
    handler = JSONTraceHandler(f"{folder}/traces", num_traces_to_keep=1)
    # Rank 1 alone says that it is time to save the first of these batches.
    first = (
        cyclic_schedule(0, 0, 0, 1, 2) if dist.get_global_rank() else cyclic_schedule(0, 0, 0, 2)
    )
    profiler = make_profiler(folder, first, handler, torch_prof_record_shapes=True)
    profiled(profiler, max_duration="3ba")
    return [str(path) for _time, paths in handler.saved_traces for path in paths]


def test_the_traces_of_two_ranks_are_merged(tmp_path):
    kept = run_ranks(_profile_rank, 2, str(tmp_path))
    assert [Path(path).name for (path,) in kept] == ["ep0-ba2-rank0.json", "ep0-ba2-rank1.json"]
    events = read_trace(tmp_path / "traces/merged_trace.json")
    for rank in (0, 1):
        assert ("event/batch", "event/train_batch") in parents(events, rank)
        batches = [e["args"]["batch"] for e in named(events, "event/loss", "B") if e["pid"] == rank]
        assert batches == [0, 1]
    names = {event["args"]["name"] for event in named(events, "process_name", "M")}
    assert {"rank 0", "rank 1", "rank 0: python", "rank 1: python"} <= names
    assert len({event["pid"] for event in named(events, "aten::addmm", "X")}) == 2
    clocks = named(events, "clock_sync_timestamp_us", "M")
    assert len({event["args"]["value"] for event in clocks}) == 1
    json.dumps(events, allow_nan=False)
