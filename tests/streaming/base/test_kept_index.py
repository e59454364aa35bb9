"""The kept index: whose data a folder holds, and what of it can be trusted."""

import fcntl
import json
import logging
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import Stream, StreamingDataset
from streaming.base import files, kept_index
from streaming.base.kept_index import KeptIndex
from tests.streaming.base.test_stream import fetched
from tests.streaming.shards import write_ids


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PATIENCE_SECONDS", 0.05)


def read(remote: str, local: Path, **kwargs: Any) -> list[int]:
    dataset = StreamingDataset(remote=remote, local=str(local), batch_size=4, **kwargs)
    return [sample["id"] for sample in dataset]


def twins(tmp_path: Path, **kwargs: Any) -> tuple[str, str]:
    """Two datasets whose indexes are equal, and whose rows are not."""
    one = write_ids(tmp_path, 20, **kwargs)
    two = write_ids(tmp_path, 20, first=100, **kwargs)
    return one, two


def test_other_data_of_the_same_sizes_is_not_taken_for_it(tmp_path: Path) -> None:
    one, two = twins(tmp_path)
    assert Path(one, "index.json").read_bytes() == Path(two, "index.json").read_bytes()
    for _ in range(2):
        assert read(one, tmp_path / "cache") == list(range(20))
        assert read(two, tmp_path / "cache") == list(range(100, 120))


def _read_in_child(remote: str, local: Path, want: list[int]) -> None:
    assert read(remote, local) == want


def test_nor_by_another_process_that_comes_at_once(tmp_path: Path) -> None:
    one, two = twins(tmp_path)
    for remote, first in ((one, 0), (two, 100)):
        args = (remote, tmp_path / "cache", list(range(first, first + 20)))
        child = multiprocessing.get_context("fork").Process(target=_read_in_child, args=args)
        child.start()
        child.join()
        assert child.exitcode == 0


def test_a_folder_that_is_in_use_is_left_alone(tmp_path: Path) -> None:
    one, two = twins(tmp_path)
    cache = tmp_path / "cache"
    running = StreamingDataset(remote=one, local=str(cache), batch_size=4)
    iterator = iter(running)
    assert next(iterator)["id"] == 0
    with pytest.raises(ValueError, match=f"Reused local directory: {cache}.*Provide a different"):
        read(two, cache)
    assert read(one, cache) == list(range(20))  # The same data may well be read.
    assert [sample["id"] for sample in iterator] == list(range(1, 20))
    del running, iterator
    assert read(two, cache) == list(range(100, 120))


def test_checksums_tell_what_need_not_be_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = write_ids(tmp_path, 20, hashes=["sha1"])
    assert read(remote, tmp_path / "cache") == list(range(20))
    moved = str(shutil.move(remote, tmp_path / "moved"))
    names = fetched(monkeypatch)
    assert read(moved, tmp_path / "cache") == list(range(20)) and names == ["index.json"]
    index = json.loads(Path(moved, "index.json").read_text())
    del index["shards"][1:]  # The others are no longer of it.
    Path(moved, "index.json").write_text(json.dumps(index))
    assert read(moved, tmp_path / "cache") == list(range(7)) and len(names) == 2


def test_copies_made_by_hand_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = write_ids(tmp_path, 20)
    shutil.copytree(remote, tmp_path / "cache")
    names = fetched(monkeypatch)
    assert read(remote, tmp_path / "cache") == list(range(20)) and names == ["index.json"]


@pytest.mark.parametrize("half", ["cut", "of another", "gone"])
def test_an_index_that_is_not_its_own(half: str, tmp_path: Path) -> None:
    one, two = twins(tmp_path)
    cache = tmp_path / "cache"
    assert read(one, cache) == list(range(20))
    index = cache / "index.json"
    if half == "cut":
        index.write_bytes(index.read_bytes()[:100])
    elif half == "gone":
        index.unlink()
    else:
        shutil.copy(Path(two, "index.json"), index)
    for path in cache.glob("*.mds"):
        shutil.copy(Path(two, path.name), path)
    if half == "of another":  # Nothing but what it says of itself could tell.
        index.write_bytes(index.read_bytes()[:-1] + b', "source": "/somewhere"}')
    assert read(one, cache) == list(range(20))


def test_without_the_source_what_is_here_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = twins(tmp_path)
    assert read(one, tmp_path / "cache") == list(range(20))
    shutil.move(one, tmp_path / "away")
    with caplog.at_level(logging.WARNING, logger=kept_index.__name__):
        assert read(one, tmp_path / "cache") == list(range(20))
    assert "has no file index.json" in caplog.text and "is used as it is" in caplog.text
    shutil.rmtree(two)
    with pytest.raises(FileNotFoundError, match="has no file index.json"):
        read(two, tmp_path / "cache")  # But not for other data.


def test_the_mark_is_written_once(tmp_path: Path) -> None:
    remote, cache = write_ids(tmp_path, 20), tmp_path / "cache"
    for _ in range(3):
        read(remote, cache)
    index = json.loads((cache / "index.json").read_text())
    assert index.pop("source") == remote
    assert index == json.loads(Path(remote, "index.json").read_text())
    assert (cache / "index.json").read_text().count('"source"') == 1
    uploaded = str(shutil.copytree(cache, tmp_path / "uploaded"))  # A cache may be a source.
    assert read(uploaded, tmp_path / "second") == list(range(20))
    kept = KeptIndex(str(tmp_path / "second"), uploaded)
    assert kept.if_of([path.name for path in sorted(Path(remote).glob("*.mds"))]) is not None


def test_leftovers_go_and_work_in_progress_stays(tmp_path: Path) -> None:
    remote, cache = write_ids(tmp_path, 20), tmp_path / "cache"
    cache.mkdir()
    for name in ("old.mds.tmp", "shard.00001.mds.tmp"):
        (cache / name).write_bytes(b"half")
    with open(cache / "busy.tmp", "wb") as busy:
        fcntl.flock(busy.fileno(), fcntl.LOCK_EX)
        StreamingDataset(remote=remote, local=str(cache))
        assert sorted(os.listdir(cache)) == ["busy.tmp", "index.json"]


def test_streams_stay_as_they_were_given(tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.move(write_ids(tmp_path, 20, first=0 if split == "train" else 100), tmp_path / split)
    stream, config = Stream(remote=str(tmp_path), choose=5), {"repeat": 2.0}
    before = dict(vars(stream))
    train, val = (
        StreamingDataset(streams=[stream], split=split, batch_size=4) for split in ("train", "val")
    )
    assert [sample["id"] for sample in train][0] < 20 <= [sample["id"] for sample in val][0]
    assert vars(stream) == before
    dataset = StreamingDataset(local=str(tmp_path), split="train", stream_config=config)
    assert config == {"repeat": 2.0} and dataset.epoch_size == 40


@pytest.mark.parametrize("name", ["../victim", "{folder}/victim", 7, None])
def test_an_index_cannot_have_files_elsewhere_removed(name: Any, tmp_path: Path) -> None:
    remote, cache, victim = write_ids(tmp_path, 20), tmp_path / "cache", tmp_path / "victim"
    assert read(remote, cache) == list(range(20))
    victim.write_bytes(b"mine")
    index = Path(remote, "index.json")
    bad = json.loads(index.read_text())
    if name is None:
        bad["shards"][1] = 5
    else:
        name = name.format(folder=tmp_path) if isinstance(name, str) else name
        bad["shards"][1]["raw_data"]["basename"] = name
    index.write_text(json.dumps(bad))
    with pytest.raises(ValueError, match=f"Shard 1 of {index} does not say"):
        read(remote, tmp_path / "other")
    assert read(remote, cache) == list(range(20))  # By the copy that is here.
    marked = json.dumps(bad)[:-1] + ', "source": "/elsewhere"}'
    (cache / "index.json").write_text(marked)
    assert KeptIndex(str(cache), remote).if_of(["x"]) is None
    assert victim.read_bytes() == b"mine"


def test_a_dataset_that_was_written_here_stays(tmp_path: Path) -> None:
    remote, own = write_ids(tmp_path, 20), Path(write_ids(tmp_path, 30, first=100))
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    message = f"{own}/? holds a dataset that was not fetched from .*another `local`, or empty it"
    with pytest.raises(ValueError, match=message):
        read(remote, own)
    np.save(tmp_path / "tokens.npy", np.arange(10, dtype=np.uint16))
    with pytest.raises(ValueError, match=message):
        read(str(tmp_path / "*.npy"), own, max_seq_len=5)
    assert {path.name: path.read_bytes() for path in own.iterdir()} == before
