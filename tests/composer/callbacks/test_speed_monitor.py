"""Rates are over a window of batches, by training's clock; MFU is against a peak."""

import pytest
import torch

from composer.callbacks import peak_flops
from composer.callbacks.speed_monitor import SpeedMonitor, get_gpu_flops_available
from composer.core.event import Event
from composer.loggers.in_memory_logger import InMemoryLogger
from tests.composer.plugins import Evaluation, HandRun, Regression


class CountsFlops(Regression):
    def flops_per_batch(self, batch):
        return 1e6 * len(batch)


def values(memory, name):
    return [value for _, value in memory.data.get(name, [])]


def test_rates_over_the_window():
    memory = InMemoryLogger()
    monitor = SpeedMonitor(window_size=2, gpu_flops_available=1e9)
    HandRun(
        monitor,
        memory,
        max_duration="5ba",
        tokens_per_sample=10,
        model=CountsFlops(),
        batch_seconds=0.5,
    ).loaded().fit().close()

    # The window is full after window_size + 1 batches.
    assert [stamp.batch.value for stamp, _ in memory.data["throughput/batches_per_sec"]] == [
        3,
        4,
        5,
    ]
    for prefix in ("throughput", "throughput/device"):
        assert values(memory, f"{prefix}/batches_per_sec") == [2.0] * 3
        assert values(memory, f"{prefix}/samples_per_sec") == [8.0] * 3
        assert values(memory, f"{prefix}/tokens_per_sec") == [80.0] * 3
        assert values(memory, f"{prefix}/flops_per_sec") == [8e6] * 3
    assert values(memory, "throughput/device/mfu") == pytest.approx([8e-3] * 3)


def test_times_are_logged_from_the_first_batch_and_evaluation_counts_apart():
    memory = InMemoryLogger()
    run = HandRun(
        SpeedMonitor(time_unit="seconds"),
        memory,
        evaluation=Evaluation("eval", [1, 2]),
        max_duration="2ep",
    )
    run.loaded().fit().close()
    assert values(memory, "time/train") == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert values(memory, "time/val") == [0, 0, 0, 1.0, 1.0, 1.0]
    assert values(memory, "time/total")[-1] == 4.0
    assert "throughput/tokens_per_sec" not in memory.data
    assert "throughput/flops_per_sec" not in memory.data


def test_evaluation_time_is_kept_in_checkpoints():
    monitor = SpeedMonitor()
    monitor.load_state_dict({"total_eval_wct": 7.0})
    assert monitor.state_dict() == {"total_eval_wct": 7.0}


def test_rates_after_a_resume_span_no_time_of_the_earlier_process():
    """Pain 20: absurd throughput after a resume."""
    first = HandRun(max_duration="100ba", batches_per_epoch=100, batch_seconds=100.0)
    first.loaded().fit()
    saved = first.state.state_dict()
    first.close()
    memory = InMemoryLogger()
    run = HandRun(SpeedMonitor(window_size=1), memory, max_duration="103ba", batches_per_epoch=200)
    with pytest.warns(UserWarning, match="is not in the state_dict"):
        run.loaded(saved)
    run.fit().close()
    assert values(memory, "throughput/samples_per_sec") == [8.0, 8.0]


def test_a_reset_of_time_starts_a_new_window():
    memory = InMemoryLogger()
    run = HandRun(SpeedMonitor(window_size=1), memory, max_duration="3ba").loaded()
    run.fit()
    run.state.timestamp = type(run.state.timestamp)()
    run.fit().close()
    assert values(memory, "throughput/samples_per_sec") == [8.0] * 4


def test_flops_per_batch_must_be_a_method():
    class Wrong(Regression):
        flops_per_batch = 5.0

    with pytest.raises(TypeError, match="flops_per_batch must be a method"):
        HandRun(SpeedMonitor(), model=Wrong()).loaded().engine.run_event(Event.FIT_START)


@pytest.mark.parametrize("kwargs", [{"time_unit": "weeks"}, {"window_size": 0}])
def test_wrong_settings(kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        SpeedMonitor(**kwargs)


def test_cpu_peak_is_measured_once_and_draws_no_random_number(monkeypatch):
    monkeypatch.setattr(peak_flops, "MEASURE_SECONDS", 0.01)
    monkeypatch.setattr(peak_flops, "MATMUL_SIZE", 128)
    peak_flops._measure_matmul_flops.cache_clear()
    before = torch.get_rng_state()
    monitors = [SpeedMonitor(), SpeedMonitor()]
    for monitor in monitors:
        run = HandRun(monitor, model=CountsFlops(), max_duration="1ba").loaded()
        torch.set_rng_state(before)
        run.fit().close()
        assert torch.equal(torch.get_rng_state(), before)
    assert monitors[0].gpu_flops_available == monitors[1].gpu_flops_available > 1e6
    assert peak_flops._measure_matmul_flops.cache_info().misses == 1
    peak_flops._measure_matmul_flops.cache_clear()


def test_nothing_is_measured_for_a_model_that_counts_no_flops():
    monitor = SpeedMonitor()
    HandRun(monitor, max_duration="1ba").loaded().fit().close()
    assert monitor.gpu_flops_available is None


@pytest.mark.parametrize(
    ("name", "precision", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", "amp_bf16", 989.5e12),
        ("NVIDIA H100 PCIe", "amp_fp16", 756.5e12),
        ("NVIDIA H200", "amp_fp8", 1979e12),
        ("NVIDIA A100-SXM4-40GB", "fp32", 19.5e12),
        ("NVIDIA A10G", "amp_bf16", 125e12),
        ("Tesla V100-SXM2-16GB", "fp32", 15.7e12),
        ("Tesla T4", "amp_fp16", 65e12),
        ("NVIDIA L40S", "amp_bf16", 362e12),
        ("NVIDIA L4", "amp_bf16", 121e12),
    ],
)
def test_gpu_table(monkeypatch, name, precision, flops):
    run = HandRun(precision="fp32")
    run.state.precision = precision
    monkeypatch.setattr(run.state.device, "name", "gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    assert get_gpu_flops_available(run.state) == flops


@pytest.mark.parametrize(
    ("name", "precision"),
    [("NVIDIA RTX A1000", "fp32"), ("NVIDIA T400", "fp32"), ("Tesla V100-SXM2-16GB", "amp_bf16")],
)
def test_unknown_gpu_warns(monkeypatch, name, precision):
    run = HandRun()
    run.state.precision = precision
    monkeypatch.setattr(run.state.device, "name", "gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    with pytest.warns(UserWarning, match="MFU is not logged"):
        assert get_gpu_flops_available(run.state) == 0


def test_without_a_gpu(monkeypatch):
    run = HandRun(precision="fp32")
    assert get_gpu_flops_available(run.state) == 0
    monkeypatch.setattr(run.state.device, "name", "neuron")
    assert get_gpu_flops_available(run.state) == 23.75e12
