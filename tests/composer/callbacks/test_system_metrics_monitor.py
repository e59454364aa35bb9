"""SystemMetricsMonitor reads the machine; what needs a GPU is tested on given numbers."""

import os

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Evaluator
from composer.callbacks.system_metrics_monitor import SystemMetricsMonitor
from composer.loggers.in_memory_logger import InMemoryLogger
from composer.utils.import_helpers import MissingConditionalImportError
from tests.composer.callbacks.guarded import Given, batches, make_trainer, memory_of
from tests.composer.plugins import HandRun

KEYS = ("cpu_percentage", "cpu_memory_percent", "disk_memory_free", "network_bytes_sent")


def test_it_logs_the_machine_at_every_batch():
    trainer = make_trainer(
        SystemMetricsMonitor(),
        data=batches(3),
        eval_dataloader=Evaluator(
            label="eval",
            dataloader=DataLoader(Given(batches(1)), batch_size=None),
            device_eval_microbatch_size=4,
        ),
    )
    trainer.fit()
    memory = memory_of(trainer)
    for key in KEYS:
        assert len(memory.data[key]) == 4
    assert 0 < memory.most_recent_values["cpu_memory_percent"] < 100
    trainer.close()


GPUS = [
    {"gpu_percentage": 10, "memory_percentage": 3, "cpu_percentage": 1.0},
    {"gpu_percentage": 90, "memory_percentage": 2, "cpu_percentage": 2.0},
]


@pytest.mark.parametrize("log_all_data", [True, False])
def test_gpus_are_named_by_rank(log_all_data):
    monitor, memory = SystemMetricsMonitor(log_all_data), InMemoryLogger()
    run = HandRun(memory)
    monitor._log(GPUS, run.state, run.logger)
    logged = memory.most_recent_values
    assert logged.pop("cpu_percentage") == 2.0
    if log_all_data:
        assert logged == {
            "gpu_percentage_rank_0": 10,
            "gpu_percentage_rank_1": 90,
            "memory_percentage_rank_0": 3,
            "memory_percentage_rank_1": 2,
        }
    else:
        assert logged == {
            "min_gpu_percentage_rank_0": 10,
            "max_gpu_percentage_rank_1": 90,
            "min_memory_percentage_rank_1": 2,
            "max_memory_percentage_rank_0": 3,
        }
    run.close()


def test_a_gpu_without_its_package_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingConditionalImportError, match="'gpu'"):
        SystemMetricsMonitor()


def train_on_two(folder: str) -> dict:
    """Rank 1 has no batch to evaluate on, and training must go on."""
    rank = int(os.environ["RANK"])
    trainer = make_trainer(
        SystemMetricsMonitor(),
        data=batches(2, rank=rank),
        eval_dataloader=Evaluator(
            label="eval",
            dataloader=DataLoader(Given(batches(2 - rank)), batch_size=None),
            device_eval_microbatch_size=4,
        ),
        eval_interval="1ba",
    )
    trainer.fit()
    trainer.close()
    return {key: len(values) for key, values in memory_of(trainer).data.items() if key in KEYS}
