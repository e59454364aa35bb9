import json

import numpy as np
import pytest
import torch

from composer.loggers.in_memory_logger import InMemoryLogger
from tests.composer.plugins import HandRun


def test_values_and_their_times():
    memory = InMemoryLogger()
    HandRun(memory, max_duration="3ba", batch_seconds=2.0).loaded().fit().close()
    assert [value for _, value in memory.data["time/batch"]] == [0, 1, 2]
    assert [stamp.batch.value for stamp, _ in memory.data["time/batch"]] == [0, 1, 2]
    assert memory.most_recent_values["time/batch"] == 2
    assert memory.most_recent_timestamps["time/batch"].batch == 2
    series = memory.get_timeseries("time/batch")
    assert np.array_equal(series["time/batch"], [0, 1, 2])
    assert np.array_equal(series["sample"], [0, 4, 8])
    assert np.array_equal(series["total_wct"], [0.0, 2.0, 4.0])
    with pytest.raises(ValueError, match="'nope' was never logged"):
        memory.get_timeseries("nope")


def test_values_do_not_change_afterwards():
    memory = InMemoryLogger()
    run = HandRun(memory)
    value = torch.zeros(1)
    run.logger.log_metrics({"x": value})
    value += 1
    assert memory.most_recent_values["x"].item() == 0
    weight = torch.ones(2, requires_grad=True)
    run.logger.log_metrics({"part of a graph": weight.sum()})
    assert memory.most_recent_values["part of a graph"] == 2
    assert not memory.most_recent_values["part of a graph"].requires_grad
    run.close()


def test_hyperparameters_and_tables():
    memory = InMemoryLogger()
    run = HandRun(memory)
    run.logger.log_hyperparameters({"a": 1})
    run.logger.log_hyperparameters({"b": 2})
    run.logger.log_table(["x"], [[torch.tensor(1.5)], [np.int64(3)], ["text"]], name="t")
    run.close()
    assert memory.hyperparameters == {"a": 1, "b": 2}
    assert json.loads(memory.tables["t"]) == {"columns": ["x"], "data": [[1.5], [3], ["text"]]}
