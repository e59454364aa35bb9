"""Callbacks on two ranks: one writes, all refuse together, rates are of all devices."""

import os

from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.callbacks.memory_monitor import reduce_value
from composer.callbacks.speed_monitor import SpeedMonitor
from composer.loggers.in_memory_logger import InMemoryLogger
from tests.composer.plugins import HandRun, Regression
from tests.launch import run_ranks


class CountsFlops(Regression):
    def flops_per_batch(self, batch):
        return 1e6 * (int(os.environ["RANK"]) + 1)


def _train(folder: str) -> dict:
    rank = int(os.environ["RANK"])
    saver = CheckpointSaver(folder, "ba{batch}-rank{rank}.pt", save_interval="1ba")
    memory = InMemoryLogger()
    monitor = SpeedMonitor(window_size=1, gpu_flops_available=1e8)
    run = HandRun(saver, monitor, memory, max_duration="3ba", model=CountsFlops())
    run.loaded().fit().close()
    # What lies on rank 0's disk alone must stop both ranks.
    private = os.path.join(folder, f"private-{rank}")
    os.makedirs(private)
    if rank == 0:
        open(os.path.join(private, "ba9-rank0.pt"), "w").close()
    run = HandRun(CheckpointSaver(private, "ba{batch}-rank{rank}.pt"), max_duration="1ba").loaded()
    try:
        run.fit()
        refusal = None
    except FileExistsError as error:
        refusal = str(error)
    run.close()
    reduced = [reduce_value(rank + 1, "cpu", how).item() for how in ("mean", "sum", "min", "max")]
    return {
        "saved": saver.saved_checkpoints,
        "rates": memory.most_recent_values,
        "no": refusal,
        "reduced": reduced,
    }


def test_saver_speed_monitor_and_reduction(tmp_path):
    first, second = run_ranks(_train, 2, str(tmp_path))
    files = [f"ba{batch}-rank0.pt" for batch in (1, 2, 3)]
    assert [os.path.basename(path) for path in first["saved"]] == files
    assert second["saved"] == []
    assert sorted(p.name for p in tmp_path.iterdir() if not p.is_dir()) == [
        *files,
        "latest-rank0.pt",
    ]

    rates = first["rates"]
    assert rates["throughput/samples_per_sec"] == 8.0
    assert rates["throughput/device/samples_per_sec"] == 4.0
    assert rates["throughput/flops_per_sec"] == 6e6  # (1e6 + 2e6) in half a second
    assert abs(rates["throughput/device/mfu"] - 0.03) < 1e-9

    for of_rank in (first, second):
        assert of_rank["reduced"] == [1.5, 3.0, 1.0, 2.0]
        assert of_rank["no"].startswith("On rank 0: ")
        assert "ba9-rank0.pt is later than this run" in of_rank["no"]
