import gzip
import json
import logging

import pytest

from composer.loggers.in_memory_logger import InMemoryLogger
from composer.profiler import TorchProfiler, cyclic_schedule
from tests.composer.plugins import HandRun
from tests.composer.profiler.traces import Keeper, make_profiler, make_trainer, profiled


def test_traces_shapes_flops_and_summaries(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="composer.profiler.torch_profiler")
    profiler = make_profiler(
        tmp_path,
        cyclic_schedule(wait=1, warmup=1, active=2),
        torch_prof_record_shapes=True,
        torch_prof_profile_memory=True,
        torch_prof_with_flops=True,
    )
    profiled(profiler, max_duration="2ep")
    (part,) = profiler._callbacks
    names = [path.name for _time, paths in part.saved_traces for path in paths]
    assert names == ["rank0.4.pt.trace.json", "rank0.10.pt.trace.json"]
    trace = json.loads((tmp_path / "torch" / names[0]).read_text())
    steps = {e["name"] for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep")}
    assert len(steps) == 2
    linears = [event for event in trace["traceEvents"] if event["name"] == "aten::addmm"]
    assert len(linears) == 4 and linears[0]["args"]["Input Dims"][1] == [2, 4]
    assert any(event["name"] == "[memory]" for event in trace["traceEvents"])
    assert "operators by cpu_time_total" in caplog.text
    assert "operators by self_cpu_memory_usage" in caplog.text and "FLOPs" in caplog.text


class Traces(InMemoryLogger):
    def __init__(self):
        super().__init__()
        self.seen = []

    def log_traces(self, traces):
        self.seen += [traces["profiler/state"]] if "profiler/state" in traces else []


def test_its_state_is_logged_and_the_rest_saved_at_the_end(tmp_path):
    news = Traces()
    profiler = make_profiler(
        tmp_path, cyclic_schedule(wait=1, active=10), torch_prof_with_flops=True
    )
    profiled(profiler, max_duration="4ba", loggers=news)
    assert news.seen == ["NONE", "WARMUP", "RECORD", "RECORD"]
    assert (tmp_path / "torch/rank0.4.pt.trace.json").exists()


def test_training_twice_profiles_twice(tmp_path):
    profiler = make_profiler(
        tmp_path, cyclic_schedule(warmup=0, active=10), torch_prof_with_flops=True
    )
    trainer = make_trainer(profiler, max_duration="2ba")
    trainer.fit()
    trainer.fit(duration="2ba")
    trainer.close()
    assert len(profiler._callbacks[0].saved_traces) == 2


def test_gzip_retention_uploads_and_the_memory_timeline(tmp_path):
    keeper = Keeper(tmp_path / "kept")
    profiler = make_profiler(
        tmp_path,
        cyclic_schedule(0, 0, 0, 1, 2),
        torch_prof_use_gzip=True,
        torch_prof_record_shapes=True,
        torch_prof_profile_memory=True,
        torch_prof_with_stack=True,
        torch_prof_memory_filename="rank{rank}.{batch}.html",
        torch_prof_num_traces_to_keep=1,
    )
    profiled(profiler, max_duration="4ba", loggers=keeper, run_name="r")
    names = {path.name for path in (tmp_path / "torch").iterdir()}
    assert names == {"rank0.2.pt.trace.json.gz", "rank0.2.html"}
    with gzip.open(tmp_path / "torch/rank0.2.pt.trace.json.gz") as file:
        assert json.load(file)["traceEvents"]
    assert {path.name for path in (keeper.folder / "r/torch_traces").iterdir()} == {
        "rank0.1.pt.trace.json.gz",
        "rank0.2.pt.trace.json.gz",
    }
    page = keeper.folder / "r/torch_memory_traces/rank0.2.pt.memory_trace.html"
    assert "data:image/png;base64," in page.read_text()


def test_traces_of_another_run_are_not_written_over(tmp_path):
    settings = {"torch_prof_with_flops": True}
    profiled(make_profiler(tmp_path, **settings), max_duration="2ba")
    for path in (tmp_path / "traces").iterdir():
        path.unlink()
    with pytest.raises(FileExistsError, match="profiler, or set overwrite=True"):
        make_trainer(make_profiler(tmp_path, **settings))


def test_what_it_needs():
    with pytest.raises(RuntimeError, match="TorchProfiler works in a run with a profiler only"):
        HandRun(TorchProfiler())
    with pytest.raises(ValueError, match="needs with_stack, record_shapes and profile_memory"):
        TorchProfiler(memory_filename="m.html", with_stack=True, record_shapes=False)
