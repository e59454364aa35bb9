import threading
import time

import pytest

from composer.profiler import SystemProfiler, cyclic_schedule
from composer.profiler.system_profiler import _memory
from tests.composer.plugins import HandRun
from tests.composer.profiler.traces import make_profiler, make_trainer, read_trace


def test_counters_of_the_machine(tmp_path):
    before = threading.active_count()
    profiler = make_profiler(
        tmp_path,
        cyclic_schedule(warmup=0, active=100),
        sys_prof_cpu=True,
        sys_prof_memory=True,
        sys_prof_disk=True,
        sys_prof_net=True,
        sys_prof_stats_thread_interval_seconds=0.001,
    )
    trainer = make_trainer(profiler)
    time.sleep(0.05)
    trainer.fit()
    trainer.close()
    assert threading.active_count() == before
    counters = {}
    for event in read_trace(tmp_path / "traces/merged_trace.json"):
        if event["ph"] == "C":
            counters[event["name"]] = event["args"]
    assert 0 <= counters["cpu"]["cpu_percent"] <= 100
    assert counters["memory/virtual"]["used_gb"] > 0.01
    assert {"used_gb", "free_gb", "used_percent"} == set(counters["memory/swap"])
    assert "kb_sent" in counters["network/lo/kb_sent"]


def test_units():
    import psutil

    readings = dict(_memory())
    total = readings["memory/virtual"]["used_gb"] + readings["memory/virtual"]["available_gb"]
    assert total == pytest.approx(psutil.virtual_memory().total / 1e9, rel=0.2)


def test_what_it_needs():
    with pytest.raises(RuntimeError, match="SystemProfiler works in a run with a profiler only"):
        HandRun(SystemProfiler())
    with pytest.raises(ValueError, match="stats_thread_interval_seconds=0 must be above 0"):
        SystemProfiler(stats_thread_interval_seconds=0)
