import math

import pytest

from composer.callbacks.memory_monitor import MemoryMonitor, reduce_value
from composer.loggers.in_memory_logger import InMemoryLogger
from tests.composer.plugins import HandRun

WARNING = "The memory monitor only works on CUDA devices"


def test_on_a_cpu_it_logs_the_process():
    memory = InMemoryLogger()
    with pytest.warns(UserWarning, match=WARNING):
        run = HandRun(MemoryMonitor(dist_aggregate_batch_interval=2), memory, max_duration="3ba")
    run.loaded().fit().close()
    current = [value for _, value in memory.data["memory/current_resident_mem"]]
    peak = [value for _, value in memory.data["memory/peak_resident_mem"]]
    assert len(current) == len(peak) == 3
    assert all(0.01 < now <= most < 1000 for now, most in zip(current, peak))
    aggregated = [stamp.batch.value for stamp, _ in memory.data["memory/current_resident_mem_max"]]
    assert aggregated == [0, 2]


def test_c4_an_interval_of_nothing_is_refused():
    with pytest.raises(ValueError, match="dist_aggregate_batch_interval=0"):
        MemoryMonitor(dist_aggregate_batch_interval=0)


def test_reduce_value_alone():
    assert math.isclose(reduce_value(3, "cpu", "mean").item(), 3.0)
    with pytest.raises(ValueError, match="reduce_op"):
        reduce_value(3, "cpu", "median")
