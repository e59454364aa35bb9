"""Batches arrive as they were made, in memory that is the receiver's own and that is used again."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from streaming import StreamingDataLoader, StreamingDataset
from streaming.base import handover
from tests.streaming.shards import write_ids


class Pair(NamedTuple):
    """A batch that is no dictionary."""

    left: torch.Tensor
    right: list[Any]


class Numbers(torch.utils.data.Dataset[int]):
    """The numbers from 0 on."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, at: int) -> int:
        return at


def make(samples: list[int]) -> dict[str, Any]:
    """A batch with something of every kind, larger from batch to batch."""
    rows = torch.tensor(samples)
    wide = torch.arange(samples[0] * 8 + 8).view(-1, 8)
    return {
        "rows": rows,
        "halves": (wide / 2).bfloat16(),
        "columns": wide[:, 1::2],
        "mask": rows > 3,
        "number": torch.tensor(samples[0]),
        "none": torch.empty(0, 3),
        "pair": Pair(rows.int(), ["text", np.arange(3), rows]),
        "learned": torch.ones(2, requires_grad=True),
        "sparse": torch.eye(3).to_sparse(),
    }


def plain(value: Any) -> Any:
    """A batch in a form that can be compared."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.requires_grad, value.layout, value.to_dense().tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()
    handover.forget_ended()
    assert not handover._received


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_batches_arrive_as_they_were_made(start: str) -> None:
    expected = [plain(make(list(range(at, at + 4)))) for at in range(0, 40, 4)]
    collate = handover.HandOver(make)
    loader = DataLoader(
        Numbers(), batch_size=4, num_workers=2, collate_fn=collate, multiprocessing_context=start
    )
    batches = list(loader)
    assert [plain(batch) for batch in batches] == expected  # all kept: none lies in another's place
    assert not batches[-1]["rows"].is_shared()
    assert plain(collate([0, 1, 2, 3])) == expected[0]  # without workers nothing is done


def test_memory_is_used_again_and_given_back() -> None:
    loader = DataLoader(
        Numbers(), batch_size=1, num_workers=2, collate_fn=handover.HandOver(torch.tensor)
    )
    batches = iter(loader)
    assert torch.cat([next(batches) for _ in range(30)]).tolist() == list(range(30))
    # Each worker has two batches ready, and one that is being made or looked at.
    assert len(handover._received) <= 2 * 4
    del batches
    handover.forget_ended()
    assert not handover._received


@pytest.mark.parametrize("persistent", [False, True])
def test_the_loader_hands_over(persistent: bool, tmp_path: Path) -> None:
    dataset = StreamingDataset(local=write_ids(tmp_path, 24))
    loader = StreamingDataLoader(
        dataset, batch_size=4, num_workers=2, collate_fn=collate_ids, persistent_workers=persistent
    )
    for _ in range(2):
        batches = iter(loader)
        first = next(batches)
        assert handover._received
        assert torch.cat([first, *batches]).tolist() == list(range(24))
        assert bool(handover._received) == persistent
    assert loader.collate_fn is collate_ids
    next(iter(loader))  # left in the middle
    del loader


def collate_ids(samples: list[Any]) -> torch.Tensor:
    """The numbers of samples."""
    return torch.tensor([int(sample["id"]) for sample in samples])


@pytest.mark.parametrize("kind", ["tensors", "nested", "arrays"])
def test_torchs_own_collation(kind: str, tmp_path: Path) -> None:
    rows = DataLoader(Rows(kind), batch_size=3)
    expected = [plain(batch) for batch in rows]
    loader = StreamingDataLoader(Rows(kind), batch_size=3, num_workers=1)
    assert [plain(batch) for batch in loader] == expected


class Rows(torch.utils.data.Dataset[Any]):
    """Samples that torch can collate."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> Any:
        if self.kind == "tensors":
            return torch.arange(4) + at
        if self.kind == "nested":
            return {"a": torch.arange(4) + at, "b": {"c": at, "d": str(at)}, "e": (at, 1.5)}
        return np.arange(4) + at


KILLED = """
import os, signal, sys, torch
from torch.utils.data import get_worker_info
from streaming import StreamingDataLoader, StreamingDataset

class Pids(StreamingDataset):
    def __getitem__(self, sample_id):
        assert get_worker_info() is not None
        return torch.tensor([os.getpid(), os.getppid()])

if __name__ == "__main__":
    dataset = Pids(local=sys.argv[1], batch_size=2)
    loader = StreamingDataLoader(
        dataset, batch_size=2, num_workers=2, multiprocessing_context=sys.argv[2]
    )
    batches = iter(loader)
    pids = torch.cat([next(batches), next(batches)]).unique().tolist()
    print(*set(pids) - {os.getpid()}, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_end_with_a_main_process_that_is_killed(context: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    command = [sys.executable, str(program), write_ids(tmp_path, 40), context]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with (tmp_path / "pids").open("w") as out:  # A pipe would wait for the workers, too.
        done = subprocess.run(command, env=environment, stdout=out, check=False)
    assert done.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2 + (context == "forkserver")
    deadline = time.monotonic() + 20
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(psutil.pid_exists, pids))
