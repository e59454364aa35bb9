"""Packed rows as samples of a streaming data set: all of them, once, and exactly resumed."""

import errno
import json
import logging
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from composer.utils import dist
from llmfoundry.data.packed_dataset import PackedDataset
from llmfoundry.data.packing_index import Packing
from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.base.rows import RowsStream
from tests.launch import run_ranks
from tests.streaming.shards import world

CAPACITY, PAD = 16, 0
Ids = list[tuple[int, ...]]
"""Of a packed row: the number of each of its samples, one for each piece."""


def write(folder: Path, lengths: Iterable[int], first: int = 1, labels: bool = False) -> str:
    """A data set whose n-th sample is the number n, so often as its length says; ten a shard."""
    columns = {"input_ids": "ndarray:int32"} | ({"labels": "ndarray:int64"} if labels else {})
    if not labels:
        columns = {"tokens": "ndarray:int32"}
    sizes = list(lengths)
    limit = 600 + 10 * 4 * (sum(sizes) // len(sizes)) * (3 if labels else 1)
    with MDSWriter(columns=columns, out=str(folder), size_limit=limit) as out:
        for number, length in enumerate(sizes, first):
            row = np.full(length, number, np.int32)
            if labels:
                out.write({"input_ids": row, "labels": row.astype(np.int64)})
            else:
                out.write({"tokens": row})
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("packed")
    lengths = np.random.default_rng(3).integers(1, 15, 400).tolist()
    return write(folder / "a", lengths[:300]), write(folder / "b", lengths[300:], first=1000)


def dataset(
    window: int = 40, long_rows: Any = "cut", capacity: int = CAPACITY, **kwargs: Any
) -> Any:
    packing = Packing(capacity, PAD, long_rows, window, reader="test")
    return PackedDataset(packing=packing, shuffle_seed=5, **{"shuffle": True, **kwargs})


def ids_of(batch: dict[str, torch.Tensor]) -> Ids:
    return [
        tuple(int(row[documents == each][0]) for each in range(int(documents.max()) + 1))
        for row, documents in zip(batch["input_ids"], batch["sequence_id"], strict=True)
    ]


class Run:
    """All ranks of a run, in one process."""

    def __init__(self, ranks: int, workers: int = 0, size: int = 8, **kwargs: Any) -> None:
        self.loaders = []
        for rank in range(ranks):
            with world(rank, ranks):
                rows = dataset(batch_size=size // ranks, **kwargs)
            self.loaders.append(StreamingDataLoader(rows, size // ranks, num_workers=workers))

    def take(self, count: int | None = None) -> list[Ids]:
        """The next global batches."""
        iterators, out = [iter(loader) for loader in self.loaders], []
        while count is None or len(out) < count:
            parts = [next(iterator, None) for iterator in iterators]
            if parts[0] is None:
                break
            out.append([row for part in parts for row in ids_of(part or {})])
        return out

    def state(self) -> dict[str, Any]:
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states) and len(str(states[0])) < 300
        return states[0]

    def load(self, state: dict[str, Any]) -> "Run":
        for loader in self.loaders:
            loader.load_state_dict(state)
        return self


def flat(batches: list[Ids]) -> Ids:
    return [row for batch in batches for row in batch]


def test_every_sample_is_in_one_row_of_every_epoch(folders: tuple[str, str]) -> None:
    run = Run(1, local=folders[0])
    first, second = flat(run.take()), flat(run.take())
    for epoch in (first, second):
        assert sorted(number for row in epoch for number in row) == list(range(1, 301))
    assert first != second and sorted(first) == sorted(second)
    assert len(run.loaders[0].dataset) == len(first) < 300
    in_order = dataset(local=folders[0], shuffle=False)
    assert [row[0] for row in ids_of(default_collate(in_order[:3]))] == [1, 2, 3]


@pytest.mark.parametrize("kind", ["one", "mixed", "woven"])
def test_resuming_is_exact_whoever_loads(kind: str, folders: tuple[str, str]) -> None:
    def source() -> dict[str, Any]:
        if kind == "one":
            return {"local": folders[0]}
        shares = zip(folders, (0.7, 1.6), strict=True)
        method = "stratified" if kind == "woven" else "random"
        return {
            "streams": [Stream(local=folder, repeat=share) for folder, share in shares],
            "batching_method": method,
        }

    whole = Run(1, **source())
    expected = flat(whole.take()) + flat(whole.take())
    got: Ids = []
    state: dict[str, Any] | None = None
    for ranks, workers, size, count in ((2, 0, 8, 3), (1, 2, 16, 2), (4, 0, 8, 4), (2, 0, 4, 2)):
        run = Run(ranks, workers, size, **source())
        if state is not None:
            run.load(state)
        got += flat(run.take(count))
        state = run.state()
    assert state is not None
    run = Run(1, 0, 20, **source()).load(state)
    assert got + flat(run.take()) + flat(run.take()) == expected


def test_another_plan_is_refused(folders: tuple[str, str], tmp_path: Path) -> None:
    run = Run(1, local=folders[0])
    run.take(2)
    state = run.state()
    for other in (
        {"capacity": 17},
        {"long_rows": "split"},
        {"local": write(tmp_path / "other", [3] * 300)},
    ):
        with pytest.raises(ValueError, match="packing: best_fit:16:cut:.* -> best_fit:1"):
            Run(1, **{"local": folders[0], **other}).load(state)
    plain = StreamingDataset(local=folders[0], batch_size=8)
    with pytest.raises(ValueError, match="packing: best_fit:16:cut:.* -> none"):
        plain.load_state_dict(state)
    with pytest.raises(ValueError, match="packing: none -> best_fit:16:cut:"):
        run.load(plain.state_dict(16, True))
    Run(1, local=folders[0], capacity=17, on_mixture_change="record").load(state)
    with pytest.raises(ValueError, match="Leave the order or the packing out"):
        dataset(local=folders[0], batch_size=8, order="mosaic")


def test_b78_long_rows_are_cut_and_counted_or_split(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write(tmp_path, [5, 12, 40, 0 + 3])
    caplog.set_level(logging.INFO)
    cut = dataset(local=folder, batch_size=2)
    assert "longer than a row are cut, by 24 tokens" in caplog.text
    rows = [cut[number] for number in range(cut.size)]
    ids = ids_of(default_collate(rows))
    assert sorted(number for row in ids for number in row) == [1, 2, 3, 4]
    split = dataset(local=folder, batch_size=2, long_rows="split")
    tokens = torch.cat([split[number]["input_ids"] for number in range(split.size)])
    assert torch.bincount(tokens)[1:].tolist() == [5, 12, 40, 3]
    assert "1 longer than a row are split" in caplog.text


def test_b77_and_b79_labels_and_positions(tmp_path: Path) -> None:
    folder = write(tmp_path, [5, 7, 3], labels=True)
    (row,) = dataset(local=folder, batch_size=1)[:]
    assert row["input_ids"].tolist() == [1] * 5 + [2] * 7 + [3] * 3 + [PAD]
    assert row["sequence_id"].tolist() == [0] * 5 + [1] * 7 + [2] * 3 + [-1]
    assert row["position_ids"].tolist() == [*range(5), *range(7), *range(3), 0]
    assert row["attention_mask"].tolist() == [1] * 15 + [0]
    assert row["labels"].tolist() == [1] * 5 + [-100] + [2] * 6 + [-100] + [3] * 2 + [-100]
    assert int((row["labels"][1:] != -100).sum()) == 4 + 6 + 2


def test_the_plan_is_kept_and_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    folder = write(tmp_path / "a", [3] * 30)
    first = dataset(local=folder, batch_size=2)
    assert "Counting the tokens of 30 samples" in caplog.text
    caplog.clear()
    again = dataset(local=folder, batch_size=2)
    assert "Counting" not in caplog.text and again.packed_as == first.packed_as
    for file in Path(folder).iterdir():
        if not file.name.startswith("."):
            file.unlink()
    write(tmp_path / "b", [3] * 31)
    for file in (tmp_path / "b").iterdir():
        file.rename(Path(folder) / file.name)
    changed = dataset(local=folder, batch_size=2)
    assert "Counting the tokens of 31 samples" in caplog.text
    assert changed.packed_as != first.packed_as


def write_lines(path: Path, sizes: Iterable[int]) -> str:
    """A JSONL file of rows of tokens, padded to one number of bytes."""
    lines = (json.dumps({"tokens": [n] * size}).ljust(90) for n, size in enumerate(sizes, 1))
    path.write_text("\n".join(lines))
    return str(path)


def test_data_sets_in_one_folder_keep_a_plan_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = [write_lines(tmp_path / f"{name}.jsonl", [3] * n) for name, n in (("a", 20), ("b", 9))]
    patterns = [*files, str(tmp_path / "*.jsonl")]
    first = [dataset(local=pattern, batch_size=1).packed_as for pattern in patterns]
    assert caplog.text.count("Counting") == 3
    assert [dataset(local=pattern, batch_size=1).packed_as for pattern in patterns] == first
    assert caplog.text.count("Counting") == 3


def test_other_content_of_the_same_size_is_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "a.jsonl"
    rows = dataset(local=write_lines(path, [9, 9]), batch_size=1)
    facts = path.stat()
    write_lines(path, [9, 5])
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert path.stat().st_size == facts.st_size
    assert dataset(local=str(path), batch_size=1).packing_report.tokens == 14
    assert caplog.text.count("Counting") == 2
    with pytest.raises(ValueError, match="packing.reader is empty"):
        PackedDataset(packing=Packing(16, 0, "cut"), row_of=turns_row, local=str(path))
    assert rows.packing_report.tokens == 18


@pytest.mark.parametrize("size", [5, 12])
def test_a_sample_that_has_another_length_is_named(size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = dataset(local=write_lines(path, [9, 9]), batch_size=1)
    write_lines(path, [9, size])
    with pytest.raises(
        ValueError, match=rf"a\.jsonl, line 2: .*has {size} tokens.*had 9 .*delete .*packing-"
    ):
        rows[1]


def test_a_long_sample_is_read_once_for_all_its_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = dataset(
        local=write(tmp_path, [70, 5, 90, 200]), batch_size=1, long_rows="split", shuffle=False
    )
    expected = [rows[number]["input_ids"] for number in range(rows.size)]
    read, places = rows._read, []

    def reading(*place: Any) -> Any:
        places.append(place)
        return read(*place)

    def read_all() -> int:
        places.clear()
        rows._kept = {}
        for number, ids in enumerate(expected):
            assert torch.equal(rows[number]["input_ids"], ids)
        return len(places)

    monkeypatch.setattr(rows, "_read", reading)
    assert read_all() == 4
    monkeypatch.setattr("llmfoundry.data.packed_dataset._KEPT_TOKENS", 100)
    assert 4 <= read_all() < 10 and len(rows._kept) == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, [3] * 30)

    def refuse(*args: Any) -> bool:
        raise PermissionError(13, "no")

    monkeypatch.setattr("llmfoundry.data.packed_dataset.make_once", refuse)
    assert dataset(local=folder, batch_size=2).packing_report.rows == 6
    assert not list(tmp_path.glob(".packing-*"))


class Full(PackedDataset):
    """Has no room for what it reads."""

    reads = 0

    def _sizes(self, places: Any) -> Any:
        Full.reads += 1
        raise OSError(errno.ENOSPC, "no room for a shard")


def test_a_full_disk_under_the_shards_is_said_as_such(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no room for a shard"):
        Full(packing=Packing(16, 0, "cut"), local=write(tmp_path, [3] * 30), batch_size=1)
    assert Full.reads == 1


def test_the_index_is_not_copied_to_workers(tmp_path: Path) -> None:
    few = dataset(local=write(tmp_path / "few", [3] * 30), batch_size=2)
    many = dataset(local=write(tmp_path / "many", [3] * 3000), batch_size=2)
    (index,), (small,) = many._indexes, few._indexes
    assert len(pickle.dumps(index)) < len(pickle.dumps(small)) + 50
    again = pickle.loads(pickle.dumps(index))
    assert again.digest == index.digest and again.pieces(500) == index.pieces(500)
    (kept,) = (tmp_path / "many").glob(".packing-*")
    (other,) = (tmp_path / "few").glob(".packing-*")
    content = pickle.dumps(index)
    kept.write_bytes(other.read_bytes())
    with pytest.raises(ValueError, match="was changed while a loader worker started"):
        pickle.loads(content)


def test_planning_fetches_ahead_and_tells_how_far_it_is(
    folders: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("llmfoundry.data.packed_dataset._LOG_SECONDS", 0.0)
    monkeypatch.setattr("streaming.base.cache._REQUEST_BYTES", 1)

    def refuse(*args: Any) -> None:
        raise AssertionError("one sample was read alone")

    monkeypatch.setattr(Stream, "read_one", refuse)
    rows = dataset(remote=folders[0], local=str(tmp_path), batch_size=2)
    assert rows.packing_report.samples == 300
    assert "Counted 299 of 300 samples" in caplog.text and "dist_timeout" in caplog.text


@pytest.mark.parametrize("workers", [0, 2])
def test_remote_shards_in_a_small_cache(
    workers: int, folders: tuple[str, str], tmp_path: Path
) -> None:
    expected = Run(1, local=folders[0], predownload=8).take()
    largest = max(file.stat().st_size for file in Path(folders[0]).glob("*.mds"))
    run = Run(
        1,
        workers,
        remote=folders[0],
        local=str(tmp_path / "cache"),
        cache_limit=12 * largest,
        predownload=8,
    )
    assert run.take() == expected
    held = sum(file.stat().st_size for file in (tmp_path / "cache").glob("*.mds"))
    assert held <= 12 * largest


def test_what_cannot_be_packed(tmp_path: Path) -> None:
    with MDSWriter(columns={"x": "int"}, out=str(tmp_path / "x")) as out:
        out.write({"x": 1})
    with pytest.raises(ValueError, match=r"row 0 of .*shard.*needs input_ids or tokens.*\['x'\]"):
        dataset(local=str(tmp_path / "x"), batch_size=1)
    with MDSWriter(columns={"tokens": "bytes"}, out=str(tmp_path / "none")) as out:
        out.write({"tokens": b""})
    with pytest.raises(ValueError, match="nothing to pack: all 1 samples of .* are empty"):
        dataset(local=str(tmp_path / "none"), batch_size=1)


class Counting(PackedDataset):
    """Knows how many samples it was planned from, here."""

    counted = 0

    def _row(self, shard: int, offset: int, retry: int = 7) -> Any:
        self.counted += 1
        return super()._row(shard, offset, retry)


def _epoch_of_rank(folder: str) -> tuple[Ids, dict[str, Any], bool, int]:
    packing = Packing(CAPACITY, PAD, "cut", 40)
    rows = Counting(packing=packing, shuffle=True, shuffle_seed=5, local=folder, batch_size=4)
    counted = rows.counted
    loader = StreamingDataLoader(rows, 4)
    ids = [row for batch in loader for row in ids_of(batch)]
    return ids, loader.state_dict() or {}, dist.get_world_size() == 2, counted


def test_two_ranks_share_a_plan_and_the_rows(folders: tuple[str, str], tmp_path: Path) -> None:
    lengths = np.random.default_rng(4).integers(1, 15, 200).tolist()
    folder = write(tmp_path / "new", lengths)
    (one, state, is_two, *counts), (two, other, _, count) = run_ranks(_epoch_of_rank, 2, folder)
    assert is_two and state == other and sorted([*counts, count]) == [0, 200]
    seen = sorted(number for row in {*one, *two} for number in row)
    assert seen == list(range(1, 201))


def turns_row(sample: dict[str, Any]) -> dict[str, list[int]]:
    """What a fine-tuning loader makes of a sample: prompts are no targets."""
    row: dict[str, list[int]] = {"input_ids": [], "labels": []}
    for turn in sample["turns"]:
        row["input_ids"] += turn["input_ids"] + turn["labels"]
        row["labels"] += [-100] * len(turn["input_ids"]) + turn["labels"]
    return row


@pytest.mark.parametrize("source", ["mds", "jsonl", "hf", "memory"])
def test_tokenised_turns_of_every_source(source: str, tmp_path: Path) -> None:
    """B77 and B78 for fine-tuning rows."""
    generator = np.random.default_rng(1)
    sizes = generator.integers(1, 7, (60, 2)).tolist()
    samples = [
        {"turns": [{"input_ids": [n] * prompt, "labels": [n] * answer}]}
        for n, (prompt, answer) in enumerate(sizes, 1)
    ]
    stream: Stream
    if source == "mds":
        with MDSWriter(columns={"turns": "json"}, out=str(tmp_path), size_limit=2000) as out:
            for sample in samples:
                out.write(sample)
        stream = Stream(local=str(tmp_path))
    elif source == "jsonl":
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, samples)))
        stream = Stream(local=str(tmp_path))
    else:
        rows: Any = samples if source == "memory" else datasets.Dataset.from_list(samples)
        stream = RowsStream(rows)
    packed = dataset(streams=[stream], batch_size=4, row_of=turns_row)
    loader = StreamingDataLoader(packed, 4, num_workers=2)
    batches = list(loader)
    seen = sorted(number for batch in batches for row in ids_of(batch) for number in row)
    assert seen == list(range(1, 61))
    targets = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
    assert targets == sum(answer for _, answer in sizes)
    for batch in batches:  # An answer stands behind its prompt.
        for row in range(len(batch["labels"])):
            for document in range(int(batch["sequence_id"][row].max()) + 1):
                places = batch["sequence_id"][row] == document
                number = int(batch["input_ids"][row, places][0])
                prompt, answer = sizes[number - 1]
                wanted = [-100] * prompt + [number] * answer
                assert batch["labels"][row, places].tolist() == wanted
    if source in ("mds", "jsonl"):
        assert len(list(tmp_path.glob(".packing-*"))) == 1
    elif source == "memory":
        assert not Path(stream.folder).exists()
    other = [{"turns": [{"input_ids": [], "labels": [1]}]}] * 60
    if source == "memory":
        again = dataset(streams=[RowsStream(other)], batch_size=4, row_of=turns_row)
        assert again.packing_report.rows == 4
