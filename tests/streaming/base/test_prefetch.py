"""Fetching ahead: several at a time, as far as asked, and no failure lost."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from streaming import StreamingDataset
from streaming.base.store import FolderStore
from tests.composer.utils.object_store.faults import Proxy
from tests.streaming.base.test_remote import write as write_to_store
from tests.streaming.shards import ids_of, write_ids

ROWS = 100


@pytest.fixture
def remote(tmp_path: Path) -> str:
    return write_ids(tmp_path, ROWS, per_shard=10)


def wait_for(folder: Path, count: int) -> int:
    """How many shards are here, when as many are here as should be, or after 10 seconds."""
    deadline = time.monotonic() + 10
    while len(list(folder.glob("*.mds"))) < count and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    return len(list(folder.glob("*.mds")))


def test_several_are_fetched_at_a_time(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, together = FolderStore.fetch, threading.Barrier(4, timeout=20)

    def slow(self: FolderStore, name: str, *args: Any) -> None:
        if name in [f"shard.{number:05}.mds" for number in range(4)]:
            together.wait()
        fetch(self, name, *args)

    monkeypatch.setattr(FolderStore, "fetch", slow)
    dataset = StreamingDataset(
        remote=remote, local=str(tmp_path / "cache"), batch_size=4, predownload=ROWS
    )
    assert [sample["id"] for sample in dataset] == list(range(ROWS))


@pytest.mark.parametrize(("predownload", "shards"), [(0, 1), (15, 2), (35, 4), (None, 3)])
def test_how_far_ahead(predownload: int | None, shards: int, remote: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    dataset = StreamingDataset(
        remote=remote, local=str(local), batch_size=1, predownload=predownload or None
    )
    dataset.predownload = predownload  # 0 is less than a batch, which is warned of.
    iterator = iter(dataset)
    for _ in range(3):
        next(iterator)
    assert wait_for(local, shards) == shards
    assert [sample["id"] for sample in iterator] == list(range(3, ROWS))


def test_packed_rows_wait_for_all_their_shards(remote: str, tmp_path: Path) -> None:
    class Paired(StreamingDataset):
        def shards_behind(self, shard_id: int) -> tuple[int, ...]:
            return shard_id, 9 - shard_id

    local = tmp_path / "cache"
    iterator = iter(Paired(remote=remote, local=str(local), batch_size=1, predownload=1))
    next(iterator)
    assert wait_for(local, 2) == 2
    assert {path.name for path in local.glob("*.mds")} == {"shard.00000.mds", "shard.00009.mds"}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_cannot_be_fetched_stops_the_loop(num_workers: int, s3: Proxy, tmp_path: Path) -> None:
    write_to_store("s3://bucket/data")
    dataset = StreamingDataset(remote="s3://bucket/data", local=str(tmp_path), batch_size=4)
    loader: Any = DataLoader(dataset, batch_size=4, num_workers=num_workers)
    s3.mood = lambda method: "403" if len(os.listdir(tmp_path)) > 1 else None
    begun, got = time.monotonic(), []
    with pytest.raises(PermissionError, match="No access to s3://bucket/data/shard.*AWS_ACCESS"):
        for batch in loader:
            got += ids_of(batch)
    assert time.monotonic() - begun < 60 and len(got) < 60
    s3.mood = lambda method: None
    assert sorted(n for batch in loader for n in ids_of(batch)) == list(range(60))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_shard_that_is_gone_stops_the_loop(num_workers: int, remote: str, tmp_path: Path) -> None:
    dataset = StreamingDataset(remote=remote, local=str(tmp_path / "cache"), batch_size=4)
    os.unlink(Path(remote) / "shard.00007.mds")
    loader: Any = DataLoader(dataset, batch_size=4, num_workers=num_workers)
    got: list[int] = []
    with pytest.raises(RuntimeError, match="has no file shard.00007.mds. Its index names it"):
        for batch in loader:
            got += ids_of(batch)
    assert 60 <= len(got) <= 70


def test_a_failure_ahead_costs_nothing_else(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, failed = FolderStore.fetch, set()

    def failing(self: FolderStore, name: str, *args: Any) -> None:
        if threading.current_thread().name == "shard-prefetch" and name not in failed:
            failed.add(name)
            raise RuntimeError("once")
        fetch(self, name, *args)

    dataset = StreamingDataset(
        remote=remote, local=str(tmp_path / "cache"), batch_size=4, predownload=25
    )
    monkeypatch.setattr(FolderStore, "fetch", failing)
    got = []
    for sample in dataset:
        got.append(sample["id"])
        time.sleep(0.003)
    assert got == list(range(ROWS))
    assert len(failed) > 4  # More than there are threads.
