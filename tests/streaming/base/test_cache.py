"""The cache: bounded for all processes of a node, single samples from afar, full disks."""

import multiprocessing
import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from streaming import JSONWriter, MDSWriter, StreamingDataset
from streaming.base import cache as cache_module
from streaming.base.store import FolderStore
from tests.composer.utils.object_store.faults import Proxy
from tests.streaming.base.test_stream import fetched
from tests.streaming.shards import ids_of

ROWS = 200


def write(out: str, compression: str | None = None, hashes: list[str] | None = None) -> str:
    columns, rng = {"id": "int", "x": "bytes"}, np.random.default_rng(0)
    kwargs: Any = {"columns": columns, "compression": compression, "hashes": hashes}
    with MDSWriter(out=out, size_limit=10_000, **kwargs) as writer:
        for number in range(ROWS):
            writer.write({"id": number, "x": rng.bytes(900)})
    return out


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(str(tmp_path_factory.mktemp("remote") / "data"))


def limit_for(shards: int) -> int:
    return shards * 10_000 + 30_000  # The index takes some as well.


def taken(folder: Path) -> int:
    """Bytes on disk, which of a file in the making are those that it has been filled with."""
    total = 0
    for entry in os.scandir(folder):
        try:
            total += min(entry.stat().st_size, entry.stat().st_blocks * 512)
        except FileNotFoundError:
            continue
    return total


def _read_all(remote: str, local: str, seed: int, keep_zip: bool) -> None:
    dataset = StreamingDataset(
        remote=remote,
        local=local,
        batch_size=4,
        shuffle=True,
        shuffle_seed=seed,
        cache_limit=limit_for(9 if keep_zip else 5),
        keep_zip=keep_zip,
    )
    for _ in range(2):
        assert sorted(sample["id"] for sample in dataset) == list(range(ROWS))


@pytest.mark.parametrize("keep_zip", [False, True])
def test_many_processes_keep_to_one_limit(keep_zip: bool, remote: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    source = write(str(tmp_path / "packed"), "zstd") if keep_zip else remote
    StreamingDataset(remote=source, local=str(local))
    context, peak = multiprocessing.get_context("fork"), 0
    args = [(source, str(local), seed, keep_zip) for seed in range(4)]
    children = [context.Process(target=_read_all, args=each) for each in args]
    for child in children:
        child.start()
    while any(child.is_alive() for child in children):
        peak = max(peak, taken(local))
        time.sleep(0.001)
    assert [child.exitcode for child in children] == [0] * 4
    # What is removed and what comes in its place may both be seen, on a way through the folder.
    assert 20_000 < peak <= limit_for(9 if keep_zip else 5) + 10_000
    assert not list(local.glob("*.tmp"))


def test_what_lies_ahead_is_not_removed_to_fetch_more(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = fetched(monkeypatch)
    dataset = StreamingDataset(
        remote=remote,
        local=str(tmp_path / "cache"),
        batch_size=4,
        predownload=ROWS,
        cache_limit=limit_for(5),
    )
    got = []
    for sample in dataset:
        got.append(sample["id"])
        time.sleep(0.002)  # All there is could be fetched ahead, if there were room.
    assert got == list(range(ROWS))
    assert len(names) == len(set(names)) == dataset.num_shards + 1


def test_a_file_that_a_killed_process_was_making_takes_no_room(remote: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    dataset = StreamingDataset(
        remote=remote, local=str(local), batch_size=4, cache_limit=limit_for(5)
    )
    for number in (7, 8, 9, 10):
        with open(local / f"shard.{number:05}.mds.tmp", "wb") as file:
            file.truncate(9_900)
    assert [dataset[number]["id"] for number in (0, 20, 40, 60)] == [0, 20, 40, 60]
    assert not list(local.glob("*.tmp"))
    assert [sample["id"] for sample in dataset] == list(range(ROWS))


def test_removed_files_are_closed(remote: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    dataset = StreamingDataset(
        remote=remote, local=str(local), batch_size=4, cache_limit=limit_for(9)
    )
    for number in range(5):
        dataset[number * 10]
    for path in local.glob("*.mds"):
        path.unlink()  # As another process does.
    dataset[60]
    assert sum(shard.is_open for shard in dataset.shards) == 1


def test_shards_in_use_are_the_last_to_go(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_TOUCH_SECONDS", 0.0)
    local = tmp_path / "cache"
    dataset = StreamingDataset(
        remote=remote, local=str(local), batch_size=4, cache_limit=limit_for(5)
    )
    for number in range(20):
        dataset[number * 10]
        time.sleep(0.005)  # So that file times differ.
        dataset[0]
        assert (local / "shard.00000.mds").exists()


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Lets no file grow beyond this, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_full_disk_is_named(num_workers: int, remote: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    dataset = StreamingDataset(remote=remote, local=str(local), batch_size=4)
    loader: Any = DataLoader(dataset, batch_size=4, num_workers=num_workers)
    with small_files(9_000), pytest.raises(OSError, match="could not be written") as error:
        list(loader)
    text = str(error.value)
    assert "shard.00000.mds, of 9" in text or "shard.00001.mds, of 9" in text
    assert "Free space there, set `cache_limit`" in text
    assert not list(local.glob("*.mds"))
    batches = list(loader)
    assert sorted(number for batch in batches for number in ids_of(batch)) == list(range(ROWS))
    assert not list(local.glob("*.tmp"))


def test_no_room_for_the_index(remote: str, tmp_path: Path) -> None:
    with small_files(1_000), pytest.raises(OSError, match="index.json could not be written"):
        StreamingDataset(remote=remote, local=str(tmp_path / "cache"), batch_size=4)
    assert os.listdir(tmp_path / "cache") == []


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what is read from afar, where a request costs as much as 1,000 bytes."""
    monkeypatch.setattr(cache_module, "_REQUEST_BYTES", 1_000)
    sizes: list[int] = []
    fetch_range = FolderStore.fetch_range

    def counted(self: FolderStore, name: str, start: int, stop: int, timeout: float) -> bytes:
        sizes.append(stop - start)
        return fetch_range(self, name, start, stop, timeout)

    monkeypatch.setattr(FolderStore, "fetch_range", counted)
    return sizes


def test_single_samples_come_alone_until_the_shard_is_cheaper(
    remote: str, ranges: list[int], tmp_path: Path
) -> None:
    local = tmp_path / "cache"
    dataset = StreamingDataset(remote=remote, local=str(local))
    wanted = StreamingDataset(local=remote)
    first, last = 0, dataset.num_shards - 1
    size = len(wanted.shards[first])
    for count in range(4):  # 2 requests each, of a shard that costs as much as 9.
        number = count * 2 % size
        assert dataset[number] == wanted[number]
        assert not list(local.glob("*.mds"))
    assert len(ranges) == 8 and sum(ranges) < 4_000
    assert dataset[7] == wanted[7] and [p.name for p in local.glob("*.mds")] == ["shard.00000.mds"]
    assert dataset[ROWS - 1] == wanted[ROWS - 1] and len(wanted.shards[last]) > 0
    with pytest.raises(IndexError):
        dataset[ROWS]


def test_neighbours_come_with_their_shard(remote: str, ranges: list[int], tmp_path: Path) -> None:
    dataset = StreamingDataset(remote=remote, local=str(tmp_path / "cache"))
    assert [sample["id"] for sample in dataset[0:8]] == list(range(8))
    assert len(ranges) == 2


def test_an_epoch_never_asks_for_samples_alone(
    remote: str, ranges: list[int], tmp_path: Path
) -> None:
    dataset = StreamingDataset(
        remote=remote, local=str(tmp_path / "cache"), batch_size=4, shuffle=True
    )
    assert len(list(dataset)) == ROWS and not ranges


def test_what_must_be_unpacked_or_verified_comes_whole(ranges: list[int], tmp_path: Path) -> None:
    packed = write(str(tmp_path / "packed"), "zstd")
    hashed = write(str(tmp_path / "hashed"), None, ["sha1"])
    assert StreamingDataset(remote=packed, local=str(tmp_path / "one"))[5]["id"] == 5
    verified: Any = {"local": str(tmp_path / "two"), "validate_hash": "sha1"}
    assert StreamingDataset(remote=hashed, **verified)[5]["id"] == 5
    assert not ranges
    assert StreamingDataset(remote=hashed, local=str(tmp_path / "three"))[5]["id"] == 5
    assert len(ranges) == 2


def test_lines_come_alone_as_well(ranges: list[int], tmp_path: Path) -> None:
    columns = {"id": "int", "text": "str"}
    with JSONWriter(columns=columns, out=str(tmp_path / "data"), size_limit=None) as writer:
        for number in range(100):
            writer.write({"id": number, "text": "x" * number})
    dataset = StreamingDataset(remote=str(tmp_path / "data"), local=str(tmp_path / "cache"))
    for number in (0, 57, 99):
        assert dataset[number] == {"id": number, "text": "x" * number}
    assert len(ranges) == 6 and not list((tmp_path / "cache").glob("*.json.*"))


def test_a_large_shard_in_a_store(s3: Proxy, tmp_path: Path) -> None:
    with MDSWriter(columns={"x": "bytes"}, out="s3://bucket/data", size_limit=None) as writer:
        for number in range(300):
            writer.write({"x": bytes([number % 256]) * 40_000})
    dataset = StreamingDataset(remote="s3://bucket/data", local=str(tmp_path))
    s3.seen.clear()
    assert dataset[211]["x"] == bytes([211]) * 40_000
    asked = [headers["range"] for _method, _path, headers in s3.seen]
    assert len(asked) == 2 and asked[0] == f"bytes={4 * 212}-{4 * 214 - 1}"
    assert os.listdir(tmp_path) == ["index.json"]
    s3.faults += [("GET", "503"), ("GET", "truncated")]
    assert dataset[7]["x"] == bytes([7]) * 40_000  # The second time the shard is as cheap.
    assert sorted(os.listdir(tmp_path)) == ["index.json", "shard.00000.mds"]


def test_a_damaged_source_of_single_samples(ranges: list[int], tmp_path: Path, remote: str) -> None:
    source = tmp_path / "data"
    write(str(source))
    path = source / "shard.00000.mds"
    path.write_bytes(b"\xff" * path.stat().st_size)
    dataset = StreamingDataset(remote=str(source), local=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="shard.00000.mds of .* has sample 3 at bytes 4294967295"):
        dataset[3]
    path.unlink()
    with pytest.raises(RuntimeError, match="no file shard.00000.mds. Its index names it"):
        dataset[5]


def test_a_source_that_was_cut_short(ranges: list[int], tmp_path: Path) -> None:
    source = tmp_path / "data"
    write(str(source))
    path = source / "shard.00000.mds"
    dataset = StreamingDataset(remote=str(source), local=str(tmp_path / "cache"))
    os.truncate(path, path.stat().st_size - 10)
    last = len(dataset.shards[0]) - 1
    with pytest.raises(ValueError, match=rf"{path} has \d+ bytes, but \d+ to \d+ are wanted"):
        dataset[last]


def test_threads_do_not_outlive_an_epoch(remote: str, tmp_path: Path) -> None:
    dataset = StreamingDataset(
        remote=remote, local=str(tmp_path / "cache"), batch_size=4, cache_limit=limit_for(5)
    )
    next(iter(dataset))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if "shard-prefetch" not in {thread.name for thread in threading.enumerate()}:
            break
        time.sleep(0.01)
    else:
        pytest.fail("a thread goes on")
