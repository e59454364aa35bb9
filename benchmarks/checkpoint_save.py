"""What saving a large state costs training: synchronous and asynchronous, in turns, on one process.

Run ``python benchmarks/checkpoint_save.py``. Exits with 1 if an asynchronous save keeps training
waiting for more than 5 % of what a synchronous one does, or needs more than 1.1 times the state in
extra memory; the first save counts by itself. ``--shards`` measures folders of shards instead of
one file.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from composer.checkpoint.background_save import BackgroundSave
from composer.checkpoint.monolithic import write_checkpoint_file
from composer.checkpoint.sharded import FolderWriter


class Peak:
    """Notes the most memory that this process holds of its own, while it is entered."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._stop = threading.Event()
        self.bytes = 0

    def _held(self) -> int:
        return self._process.memory_info().rss - self._process.memory_info().shared

    def __enter__(self) -> "Peak":
        self._before = self._held()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self.bytes = max(self.bytes, self._held() - self._before)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def make_state(mib: int) -> dict[str, Any]:
    """Returns a state as of a model and Adam: a third weights, two thirds moments."""
    torch.manual_seed(0)
    count = mib * 2**20 // 4 // 3 // 2**20
    names = [f"{part}.{n}" for part in ("model", "exp_avg", "exp_avg_sq") for n in range(count)]
    return {"state": {name: torch.randn(2**20) for name in names}}


def save(state: dict[str, Any], path: str, shards: bool, background: BackgroundSave | None) -> None:
    """Saves, or starts to."""
    if background is None:
        if shards:
            FolderWriter(state, path).write()
        else:
            write_checkpoint_file(state, path)
        return
    if shards:
        writer = FolderWriter(state, path)
        writer.stage(background.staging.copy)
        background.start(writer.write)
    else:
        copied = background.staging.copy_nested(state)
        background.start(lambda: write_checkpoint_file(copied, path))


def main() -> int:
    """Measures, prints, and tells whether the bars hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--shards", action="store_true")
    args = parser.parse_args()
    state = make_state(args.mib)
    size = sum(tensor.nbytes for tensor in state["state"].values())
    background = BackgroundSave()
    blocked: dict[str, list[float]] = {"synchronous": [], "asynchronous": []}
    written: list[float] = []
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        # As the trainer does after its first batch; the memory is part of what is measured.
        with Peak() as peak:
            background.reserve(state["state"].values())
            for number in range(args.rounds):
                for kind, saver in (("synchronous", None), ("asynchronous", background)):
                    _ = background.staging  # has been reserved
                    start = time.perf_counter()
                    save(state, f"{folder}/{kind}{number % 2}", args.shards, saver)
                    blocked[kind].append(time.perf_counter() - start)
                error = background.settle()
                written.append(time.perf_counter() - start)
                if error is not None:
                    raise error
    background.close()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        background = BackgroundSave()
        start = time.perf_counter()
        save(state, f"{folder}/unprepared", args.shards, background)
        unprepared = time.perf_counter() - start
        background.settle()
        background.close()
    sync = statistics.median(blocked["synchronous"])
    first, *later = blocked["asynchronous"]
    asynchronous = statistics.median(later)
    share, memory = max(first, asynchronous) / sync, peak.bytes / size
    print(f"state {size / 2**30:.2f} GiB, {'shards' if args.shards else 'one file'}")
    print(f"synchronous  blocks {sync:.3f} s  {[round(t, 3) for t in blocked['synchronous']]}")
    print(
        f"asynchronous blocks {asynchronous:.3f} s  {[round(t, 3) for t in later]}, the first one "
        f"{first:.3f} s; written after {statistics.median(written):.3f} s"
    )
    print(
        f"share {asynchronous / sync:.1%}, of the first {first / sync:.1%} (bar 5 %); "
        f"extra memory {memory:.2f} of the state (bar 1.10)"
    )
    print(f"a first one without reserved memory would block {unprepared:.3f} s")
    return 0 if share <= 0.05 and memory <= 1.1 else 1


if __name__ == "__main__":
    sys.exit(main())
