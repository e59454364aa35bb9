import torch

from composer.utils.gpu_memory import get_cuda_memory_report, to_gigabytes


def test_cuda_statistics_in_gigabytes(monkeypatch):
    statistics = {"allocated_bytes.all.current": 1_234_567_890, "num_alloc_retries": 2}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: statistics)
    assert get_cuda_memory_report(None) == {
        "current_allocated_mem": 1.2346,
        "alloc_retries": 2,
    }
    keys = {"allocated_bytes.all.current": "alloc_bytes", "missing": "nothing"}
    assert get_cuda_memory_report(keys) == {"alloc_gigabytes": 1.2346}


def test_rounding():
    assert to_gigabytes(0) == 0.0
    assert to_gigabytes(123_456) == 0.00012346
