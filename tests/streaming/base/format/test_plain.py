"""Datasets without an index: what a path names, the exact order, stores, and what is refused."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import LocalDataset, Stream, StreamingDataLoader, StreamingDataset
from streaming.base.format.plain import index_files
from streaming.base.store import FolderStore, open_store
from tests.streaming.base.format.plain_files import (
    KINDS,
    ROW,
    numbers,
    stream_of,
    write_numbers,
)
from tests.streaming.shards import world

FILES = [kind for kind in KINDS if kind != "rows"]


class Run:
    """A run of several ranks over two weighted streams of one format, shuffled."""

    def __init__(
        self, folder: Path, kind: str, ranks: int, workers: int = 0, size: int = 16
    ) -> None:
        self.loaders = []
        for rank in range(ranks):
            streams = [
                stream_of(folder / "a", kind, (90, 75, 40), proportion=0.7),
                stream_of(folder / "b", kind, (31, 20), proportion=0.3),
            ]
            with world(rank, ranks):
                dataset = StreamingDataset(
                    streams=streams, shuffle=True, shuffle_seed=5, batch_size=size // ranks
                )
            self.loaders.append(
                StreamingDataLoader(dataset, batch_size=size // ranks, num_workers=workers)
            )

    def take(self, count: int | None = None) -> list[int]:
        out: list[int] = []
        taken = 0
        iterators = [iter(loader) for loader in self.loaders]
        while count is None or taken < count:
            parts = [next(iterator, None) for iterator in iterators]
            if parts[0] is None:
                break
            out += [number for part in parts for number in numbers(part)]
            taken += 1
        return out


@pytest.mark.parametrize("kind", KINDS)
def test_order_and_resume_are_exact(kind: str, tmp_path: Path) -> None:
    whole = Run(tmp_path, kind, 1).take()
    assert len(whole) == 256 and whole != sorted(whole)
    got: list[int] = []
    state: dict[str, Any] | None = None
    for ranks, workers, size, count in ((2, 0, 16, 3), (1, 2, 32, 2), (4, 0, 16, 4)):
        run = Run(tmp_path, kind, ranks, workers, size)
        if state is not None:
            for loader in run.loaders:
                loader.load_state_dict(state)
        got += run.take(count)
        states = [loader.state_dict() for loader in run.loaders]
        state = states[0]
        assert states == [state] * ranks
    run = Run(tmp_path, kind, 1)
    assert state is not None
    run.loaders[0].load_state_dict(state)
    assert got + run.take() == whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_goes_to_another_process(kind: str, tmp_path: Path) -> None:
    dataset = StreamingDataset(streams=[stream_of(tmp_path, kind, (9, 6))], batch_size=2)
    first = [str(dataset[number]) for number in (0, 8, 9, 14)]
    copy = pickle.loads(pickle.dumps(dataset))
    assert [str(copy[number]) for number in (0, 8, 9, 14)] == first


def test_all_formats_have_one_order(tmp_path: Path) -> None:
    orders = [Run(tmp_path / kind, kind, 1).take() for kind in ("bin", "npy", "parquet", "jsonl")]
    assert orders == [orders[0]] * len(orders)


def row_settings(kind: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"max_seq_len": ROW} if kind in ("bin", "npy") else {}
    return {**settings, "token_encoding_type": "uint16"} if kind == "bin" else settings


def read(kind: str, **kwargs: Any) -> list[int]:
    dataset = StreamingDataset(batch_size=5, **row_settings(kind), **kwargs)
    return [
        number for batch in StreamingDataLoader(dataset, batch_size=5) for number in numbers(batch)
    ]


@pytest.mark.parametrize("kind", FILES)
def test_a_folder_a_file_and_a_wildcard(kind: str, tmp_path: Path) -> None:
    folder = write_numbers(tmp_path / "data", kind, (15, 10, 5))
    (folder / "README.md").write_text("not data")
    (folder / ".hidden.jsonl").write_text("{}")
    assert read(kind, local=str(folder)) == list(range(30))
    assert read(kind, local=str(folder / f"part-1.{kind}")) == list(range(15, 25))
    assert read(kind, local=str(folder / "part-[02]*")) == [*range(15), *range(25, 30)]
    assert read(kind, local=str(tmp_path), split="data") == list(range(30))


def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    fetch = FolderStore.fetch

    def counted(self: FolderStore, name: str, *args: Any) -> None:
        fetch(self, name, *args)
        names.append(name)

    monkeypatch.setattr(FolderStore, "fetch", counted)
    return names


@pytest.mark.parametrize("kind", FILES)
def test_a_store_with_an_index_is_read_file_by_file(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = write_numbers(tmp_path / "remote", kind, (15, 10, 5))
    index_files(str(remote))
    names = fetched(monkeypatch)
    kwargs: dict[str, Any] = {"remote": str(remote), "local": str(tmp_path / "cache")}
    dataset = StreamingDataset(batch_size=5, **row_settings(kind), **kwargs)
    assert names == ["index.json"] and len(dataset) == 30
    dataset.get_item(16)
    assert names == ["index.json", f"part-1.{kind}"]
    (tmp_path / "cache" / f"part-1.{kind}").write_bytes(b"cut")  # A damaged cache repairs itself.
    assert read(kind, **kwargs) == list(range(30))


@pytest.mark.parametrize("kind", FILES)
def test_a_store_without_an_index_is_fetched_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = write_numbers(tmp_path / "remote", kind, (15, 10, 5))
    (remote / "below").mkdir()
    (remote / "below" / "other.txt").write_text("not data")
    names = fetched(monkeypatch)
    kwargs: dict[str, Any] = {
        "remote": f"{remote}/part-[01]*",
        "local": str(tmp_path / "cache"),
    }
    for _ in range(2):
        assert read(kind, **kwargs) == list(range(25))
    assert names == [f"part-0.{kind}", f"part-1.{kind}"]
    (tmp_path / "cache" / f"part-1.{kind}").unlink()  # Evicted: fetched when it is read again.
    assert len(StreamingDataset(batch_size=5, **row_settings(kind), **kwargs)) == 25
    assert len(names) == 2
    assert read(kind, **kwargs) == list(range(25)) and len(names) == 3
    assert not list((tmp_path / "cache").glob("*.tmp"))


def test_files_of_an_object_store(s3: Any, tmp_path: Path) -> None:
    store = open_store("s3://bucket/data")
    for path in write_numbers(tmp_path / "data", "jsonl", (9, 6)).iterdir():
        store.put(str(path), f"train/{path.name}")
        store.put(str(path), f"other/{path.name}")
    kwargs = {"local": str(tmp_path / "cache")}
    assert read("jsonl", remote="s3://bucket/data/train/part-1*", **kwargs) == list(range(9, 15))
    kwargs = {"local": str(tmp_path / "all"), "remote": "s3://bucket/data", "split": "train"}
    assert read("jsonl", **kwargs) == list(range(15))


def test_local_dataset_reads_them(tmp_path: Path) -> None:
    folder = write_numbers(tmp_path, "parquet", (5, 4))
    assert [row["id"] for row in LocalDataset(str(folder))] == list(range(9))


def refused(message: str, **kwargs: Any) -> None:
    with pytest.raises((ValueError, RuntimeError, FileNotFoundError), match=message):
        StreamingDataset(batch_size=1, **kwargs)


def test_what_a_path_cannot_name(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("text")
    refused(r"no files that can be read without one.*\.bin.*notes\.txt", local=str(tmp_path))
    refused(r"no files 'notes.txt' that can be read", local=str(tmp_path / "notes.txt"))
    refused("no folder", local=str(tmp_path / "none"))
    refused("does not exist", local=str(tmp_path / "none.jsonl"))
    refused("wildcard in a folder", local=str(tmp_path / "*" / "a.bin"))
    refused("no file index.json.*no files", remote=str(tmp_path), local=str(tmp_path / "cache"))
    write_numbers(tmp_path, "jsonl", (3,))
    refused("leave the split out", local=str(tmp_path / "part-0.jsonl"), split="train")
    write_numbers(tmp_path, "parquet", (3,))
    refused(r"several kinds, \['.jsonl', '.parquet'\]", local=str(tmp_path))
    index_files(str(tmp_path), "*.jsonl")
    refused("names no file 'part-0.parquet'", local=str(tmp_path / "part-0.parquet"))


def test_splits_side_by_side_are_not_mixed(tmp_path: Path) -> None:
    for name in ("train.bin", "val.bin"):
        np.arange(20, dtype=np.uint16).tofile(tmp_path / name)
    kwargs = {"max_seq_len": 4, "token_encoding_type": "uint16"}
    refused("several splits", local=str(tmp_path), **kwargs)
    assert len(StreamingDataset(local=str(tmp_path / "*.bin"), batch_size=1, **kwargs)) == 10


@pytest.mark.parametrize("kind", FILES)
def test_empty_and_broken_files_are_named(kind: str, tmp_path: Path) -> None:
    folder = write_numbers(tmp_path, kind, (3, 3))
    kwargs = row_settings(kind)
    path = folder / f"part-1.{kind}"
    path.write_bytes(path.read_bytes()[:-5])
    if kind == "jsonl":
        dataset = StreamingDataset(local=str(folder), batch_size=1)
        with pytest.raises(ValueError, match=r"part-1.jsonl, line 3 is no JSON"):
            dataset[5]
    else:
        refused(rf"part-1.{kind}.*cut short", local=str(folder), **kwargs)
    path.write_bytes(b"")
    refused(rf"part-1.{kind} is empty", local=str(folder), **kwargs)


def test_settings_without_effect(tmp_path: Path) -> None:
    folder = str(write_numbers(tmp_path, "jsonl", (3,)))
    refused("`max_seq_len` has no effect", local=folder, max_seq_len=4)
    refused("`max_seq_len` has no effect", streams=[Stream(local=folder, max_seq_len=4)])
    refused("`token_encoding_type` has no effect", local=folder, token_encoding_type="uint16")


def test_an_index_of_lines_holds_no_places(tmp_path: Path) -> None:
    path = Path(index_files(str(write_numbers(tmp_path, "jsonl", (3, 2)))))
    shards = json.loads(path.read_text())["shards"]
    assert [shard["samples"] for shard in shards] == [3, 2] and "starts" not in shards[0]
    (tmp_path / "part-0.jsonl").write_text('{"id": 1}\n{"a":2}\n           \n')
    assert (tmp_path / "part-0.jsonl").stat().st_size == shards[0]["raw_data"]["bytes"]
    with pytest.raises(ValueError, match="2 rows, but the index says 3"):
        StreamingDataset(local=str(tmp_path), batch_size=1)[0]
