"""Streams and their cache: fetched once, whole or not at all, repaired, bounded."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.base.format.reader import Reader
from streaming.base.hashing import get_hashes
from streaming.base.store import FolderStore
from tests.streaming.shards import ids_of, write_ids

ROWS = 60
HASHES = sorted(get_hashes())


def make_remote(folder: Path, compression: str | None = None, count: int = ROWS) -> str:
    with MDSWriter(
        columns={"id": "int", "x": "bytes"},
        out=str(folder),
        compression=compression,
        hashes=["sha1", "xxh64"],
        size_limit=10_000,
    ) as writer:
        rng = np.random.default_rng(0)
        for number in range(count):
            writer.write({"id": number, "x": rng.bytes(900)})
    return str(folder)


@pytest.fixture(params=[None, "zstd"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return make_remote(tmp_path / "remote", request.param)


def read(**kwargs: Any) -> list[int]:
    dataset = StreamingDataset(batch_size=4, **kwargs)
    return [sample["id"] for sample in dataset]


def kinds(folder: Path) -> set[str]:
    return {path.suffix for path in folder.iterdir()}


def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    fetch = FolderStore.fetch

    def counted(self: FolderStore, name: str, *args: Any) -> None:
        names.append(name)
        fetch(self, name, *args)

    monkeypatch.setattr(FolderStore, "fetch", counted)
    return names


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("keep_zip", [False, True])
def test_cache_fills_once(
    scheme: str, keep_zip: bool, remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, local = fetched(monkeypatch), tmp_path / "cache"
    for _ in range(2):
        assert read(remote=scheme + remote, local=str(local), keep_zip=keep_zip) == list(
            range(ROWS)
        )
    shards = [name for name in names if name != "index.json"]
    assert len(shards) == len(set(shards)) > 3
    expected = {".json", ".mds"}
    if keep_zip and shards[0].endswith(".zstd"):
        expected |= {".zstd"}
    assert kinds(local) == expected
    shutil.rmtree(remote)  # Works on without the remote.
    assert read(remote=remote, local=str(local)) == list(range(ROWS))


def test_local_defaults_to_a_temporary_folder(
    remote: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    for _ in range(2):  # A second run finds the first one's, and is not refused.
        assert read(remote=remote) == list(range(ROWS))
    assert list((tmp_path / "tmp").rglob("index.json"))


def test_split_is_below_both(remote: str, tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    shutil.move(remote, top / "train")
    local = tmp_path / "cache"
    assert read(remote=str(top), local=str(local), split="train") == list(range(ROWS))
    assert (local / "train" / "index.json").exists()


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[:-7])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(data[:100] + bytes([data[100] ^ 255]) + data[101:])


@pytest.mark.parametrize("how", ["gone", "cut", "empty", "flipped"])
def test_a_damaged_cache_is_repaired(how: str, remote: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    kwargs = {"remote": remote, "local": str(local), "validate_hash": "sha1"}
    assert read(**kwargs) == list(range(ROWS))
    (local / "shard.00001.mds.tmp").write_bytes(b"left by a kill")
    damage(local / "shard.00001.mds", how)
    damage(local / "index.json", "cut" if how == "flipped" else how)
    assert read(**kwargs) == list(range(ROWS))
    good = make_remote(tmp_path / "plain")
    for path in local.glob("*.mds"):
        header = 600  # It says the compression, which differs.
        assert path.read_bytes()[header:] == (Path(good) / path.name).read_bytes()[header:] or (
            path.stat().st_size != (Path(good) / path.name).stat().st_size
        )
    assert not list(local.glob("*.tmp"))


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_damage_without_a_source_is_named(how: str, tmp_path: Path) -> None:
    folder = Path(make_remote(tmp_path / "only"))
    damage(folder / "shard.00001.mds", how)
    error = RuntimeError if how == "gone" else ValueError
    message = {"gone": "does not exist", "cut": "cut short", "flipped": "Checksum failure"}[how]
    with pytest.raises(error, match=message) as caught:
        read(local=str(folder), validate_hash="sha1")
    assert "shard.00001.mds" in str(caught.value)


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
def test_damage_at_the_source_is_named_and_not_kept(how: str, remote: str, tmp_path: Path) -> None:
    victim = next(Path(remote).glob("shard.00001.mds*"))
    damage(victim, how)
    local = tmp_path / "cache"
    with pytest.raises((ValueError, RuntimeError), match="shard.00001"):
        read(remote=remote, local=str(local), validate_hash="sha1")
    for thread in threading.enumerate():  # one may be in the middle of its own try at the shard
        if thread.name == "shard-prefetch":
            thread.join(timeout=10)
            assert not thread.is_alive()
    assert not list(local.glob("shard.00001*"))


def test_broken_packing_without_hashes_is_named(tmp_path: Path) -> None:
    remote = make_remote(tmp_path / "remote", "zstd")
    victim = Path(remote) / "shard.00002.mds.zstd"
    victim.write_bytes(b"x" * victim.stat().st_size)
    with pytest.raises(ValueError, match="shard.00002.mds.zstd does not unpack as zstd"):
        read(remote=remote, local=str(tmp_path / "cache"))


@pytest.mark.parametrize("compression", [None, "br", "bz2:1", "gz:9", "snappy", "zstd:7"])
def test_every_compression_and_hash(compression: str | None, tmp_path: Path) -> None:
    remote, hashes = write_ids(tmp_path, 20, compression=compression, hashes=HASHES), HASHES
    hashes = hashes if compression is None else hashes[::5]
    for name in hashes:
        local = tmp_path / name
        kwargs = {"remote": remote, "local": str(local), "validate_hash": name}
        assert read(**kwargs) == list(range(20))
        damage(local / "shard.00001.mds", "flipped")
        assert read(**kwargs) == list(range(20))
    damage(next(Path(remote).glob("shard.00002.mds*")), "flipped")
    for name in hashes:
        with pytest.raises(ValueError, match=f"Checksum failure: .*shard.00002.*: {name} is"):
            read(remote=remote, local=str(tmp_path / "bad"), validate_hash=name)


def test_hash_must_be_in_the_index(remote: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Hash algorithm `md5` does not match with those provided"):
        read(remote=remote, local=str(tmp_path / "cache"), validate_hash="md5")


def test_compressed_local_data_is_unpacked_beside_itself(tmp_path: Path) -> None:
    folder = Path(make_remote(tmp_path / "only", "zstd"))
    assert read(local=str(folder)) == list(range(ROWS))
    assert kinds(folder) == {".json", ".mds", ".zstd"}
    assert read(remote=str(folder), local=str(folder)) == list(range(ROWS))
    assert kinds(folder) == {".json", ".mds", ".zstd"}


def test_folders_that_cannot_be_written_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_remote(tmp_path / "only", "zstd")

    def refuse(path: str, *args: Any) -> bool:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("streaming.base.stream.make_once", refuse)
    assert read(local=folder) == list(range(ROWS))
    assert kinds(Path(folder)) == {".json", ".zstd"} and not caplog.records[1:]
    assert f"{folder} cannot be written: its shards are read into memory" in caplog.text
    monkeypatch.setattr("streaming.base.cache._MAX_BYTES_IN_MEMORY", 25_000)
    dataset = StreamingDataset(local=folder, batch_size=4)
    for number in (0, 15, 25, 0, 45):  # Of the two that fit, the one used last stays.
        assert dataset[number]["id"] == number
        assert sum(shard.is_open for shard in dataset.shards) <= 2
    assert dataset.shards[0].is_open and not dataset.shards[2].is_open


def test_a_new_index_at_the_source_is_taken_over(tmp_path: Path) -> None:
    remote, local = make_remote(tmp_path / "remote"), str(tmp_path / "cache")
    assert len(read(remote=remote, local=local)) == ROWS
    shutil.rmtree(remote)
    make_remote(tmp_path / "remote", count=25)
    assert read(remote=remote, local=local) == list(range(25))


def test_streams_cannot_share_a_cache(tmp_path: Path) -> None:
    one, two = make_remote(tmp_path / "one"), make_remote(tmp_path / "two")
    local = str(tmp_path / "cache")
    with pytest.raises(ValueError, match="Reused local directory.*vs.*Provide a different one"):
        StreamingDataset(streams=[Stream(remote=one, local=local), Stream(remote=two, local=local)])
    twice = [Stream(local=one, choose=5), Stream(local=one, choose=6)]
    assert StreamingDataset(streams=twice).epoch_size == 11


def test_two_datasets_may_share_a_cache(remote: str, tmp_path: Path) -> None:
    local = str(tmp_path / "cache")
    first = StreamingDataset(remote=remote, local=local, batch_size=4)
    second = StreamingDataset(remote=remote, local=local, batch_size=4)
    pairs = zip(first, second, strict=True)
    assert [(a["id"], b["id"]) for a, b in pairs] == [(i, i) for i in range(ROWS)]


def size_of(folder: Path) -> int:
    total = 0
    for path in folder.iterdir():
        try:
            facts = path.stat()
            # A file that is to come stands there in its full size before it takes any room.
            total += min(facts.st_size, 512 * facts.st_blocks)
        except FileNotFoundError:  # Removed by the thread that fetches ahead.
            continue
    return total


def test_eviction_keeps_to_the_limit(remote: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    probe = StreamingDataset(remote=remote, local=str(local))
    limit = 4 * max(shard.get_max_size() for shard in probe.shards) + probe.cache_usage
    dataset = StreamingDataset(
        remote=remote, local=str(local), cache_limit=limit, batch_size=4, shuffle=True
    )
    for _ in range(2):
        peak = 0
        for sample in dataset:
            assert len(sample["x"]) == 900
            peak = max(peak, size_of(local))
        assert peak <= limit + 10_000  # A file may be in the making.
    assert dataset.cache_usage <= limit
    dataset.evict_coldest_shard()
    for number in range(dataset.num_shards):
        dataset.evict_shard(number)
    assert os.listdir(local) == ["index.json"]
    assert dataset[3]["id"] == 3
    dataset.prepare_shard(5)
    assert len(list(local.glob("*.mds"))) == 2


def test_limits_that_are_too_low(remote: str, tmp_path: Path) -> None:
    for limit, message in ((10, "Minimum cache usage"), ("20kb", "is too low. Increase")):
        with pytest.raises(ValueError, match=message):
            StreamingDataset(remote=remote, local=str(tmp_path / "cache"), cache_limit=limit)


def test_only_copies_are_never_evicted(tmp_path: Path) -> None:
    folder = make_remote(tmp_path / "only")
    before = sorted(os.listdir(folder))
    dataset = StreamingDataset(local=folder, cache_limit="1mb", batch_size=4)
    for number in range(dataset.num_shards):
        dataset.evict_shard(number)
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize("linked", ["local", "remote", "split"])
def test_nor_when_a_link_leads_to_them(linked: str, tmp_path: Path) -> None:
    only, link = Path(make_remote(tmp_path / "a/data")), tmp_path / "b"
    link.mkdir()
    (link / "data").symlink_to(only)
    if linked == "split":
        places: Any = {"remote": str(only.parent), "local": str(link), "split": "data"}
    else:
        pair = (str(only), str(link / "data"))[:: 1 if linked == "local" else -1]
        places = dict(zip(("remote", "local"), pair, strict=True))
    before = sorted(os.listdir(only))
    dataset = StreamingDataset(**places, cache_limit="60kb", batch_size=4)
    assert [sample["id"] for sample in dataset] == list(range(ROWS))
    for number in range(dataset.num_shards):
        dataset.evict_shard(number)
    assert sorted(os.listdir(only)) == before and Path(only, before[1]).stat().st_size > 5_000


class _OwnStream(Stream):
    """A stream that fetches as streams always could: it is told the shard, and nothing else."""

    def prepare_shard(self, shard: Reader) -> int:
        return super().prepare_shard(shard)


def test_streams_of_others_keep_to_the_limit(remote: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    stream = _OwnStream(remote=remote, local=str(local))
    dataset = StreamingDataset(streams=[stream], cache_limit="90kb", batch_size=4)
    for sample in dataset:
        assert len(sample["x"]) == 900
    assert 0 < dataset.cache_usage <= 90_000 and size_of(local) <= 100_000


def test_a_shard_that_goes_during_an_epoch_comes_back(remote: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    dataset = StreamingDataset(remote=remote, local=str(local), batch_size=4)
    got = []
    for sample in dataset:
        got.append(sample["id"])
        if len(got) == 20:
            for path in local.glob("*.mds"):
                path.unlink()
    assert got == list(range(ROWS))


def test_shards_are_fetched_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote, local = make_remote(tmp_path / "remote"), tmp_path / "cache"
    iterator = iter(StreamingDataset(remote=remote, local=str(local), batch_size=4, predownload=30))
    next(iterator)
    deadline = time.monotonic() + 10
    while len(list(local.glob("*.mds"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 4 <= len(list(local.glob("*.mds"))) <= 5
    iterator.close()  # type: ignore[attr-defined]
    time.sleep(0.05)
    assert "shard-prefetch" not in {thread.name for thread in threading.enumerate()}


def _read_in_child(remote: str, local: str, names: Any) -> None:
    fetch = FolderStore.fetch

    def counted(self: FolderStore, name: str, *args: Any) -> None:
        names.append(name)
        fetch(self, name, *args)

    FolderStore.fetch = counted  # type: ignore[method-assign]
    assert read(remote=remote, local=local) == list(range(ROWS))


def test_many_processes_fetch_once(remote: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with context.Manager() as manager:
        names = manager.list()
        args = (remote, str(tmp_path / "cache"), names)
        children = [context.Process(target=_read_in_child, args=args) for _ in range(4)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
            assert child.exitcode == 0
        shards = [name for name in names if name != "index.json"]
    assert len(shards) == len(set(shards))


_READ_FOR_EVER = """
import sys
from streaming import StreamingDataset, StreamingDataLoader
dataset = StreamingDataset(remote=sys.argv[1], local=sys.argv[2], shuffle=True)
loader = StreamingDataLoader(dataset, batch_size=4, num_workers=2)
print("begun", flush=True)
while True:
    for batch in loader:
        pass
    for number in range(dataset.num_shards):
        dataset.evict_shard(number)
"""


@pytest.mark.parametrize("delay", [0.05, 0.3])
def test_a_kill_leaves_nothing_in_the_way(delay: float, remote: str, tmp_path: Path) -> None:
    local = tmp_path / "cache"
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _READ_FOR_EVER, remote, str(local)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for _ in range(2)  # Two jobs at once on one cache.
    ]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == "begun\n"
    time.sleep(delay)
    for child in children:
        os.killpg(child.pid, signal.SIGKILL)
    for child in children:
        child.wait()
        child.stdout.close()  # type: ignore[union-attr]
    if before:
        left = set(os.listdir("/dev/shm")) - before
        assert not {name for name in left if "locals" in name or "barrier" in name}
    dataset = StreamingDataset(remote=remote, local=str(local))
    batches = list(StreamingDataLoader(dataset, batch_size=4, num_workers=2))
    assert sorted(n for batch in batches for n in ids_of(batch)) == list(range(ROWS))
    assert not [path for path in local.iterdir() if path.suffix in (".lock", ".tmp")]


def test_ten_thousand_shards_begin_at_once(tmp_path: Path) -> None:
    folder = Path(write_ids(tmp_path, 7))
    index = json.loads((folder / "index.json").read_text())
    index["shards"] *= 10_000
    (folder / "index.json").write_text(json.dumps(index))
    start = time.process_time()  # Others may use the processor as well.
    loader = StreamingDataLoader(StreamingDataset(local=str(folder), shuffle=True), batch_size=8)
    next(iter(loader))
    assert time.process_time() - start < 2
