"""The index: what is refused, and merging."""

import json
import os
from pathlib import Path

import pytest

from streaming import LocalDataset, MDSWriter
from streaming.base.index import merge_index, parse_index


def write(folder: Path, ids: range) -> str:
    with MDSWriter(columns={"id": "int"}, out=str(folder), size_limit=250) as writer:
        for number in ids:
            writer.write({"id": number})
    return str(folder / "index.json")


def ids(folder: Path) -> list[int]:
    return [sample["id"] for sample in LocalDataset(str(folder))]


def test_merging_finds_nested_folders(tmp_path: Path) -> None:
    write(tmp_path / "a" / "0", range(5))
    write(tmp_path / "a" / "1", range(5, 9))
    write(tmp_path / "b", range(9, 30))
    assert merge_index(str(tmp_path)) == str(tmp_path / "index.json")
    assert ids(tmp_path) == list(range(30))
    merge_index(out=str(tmp_path))  # Again, over the old one.
    assert ids(tmp_path) == list(range(30))


def test_merging_a_list_keeps_its_order(tmp_path: Path) -> None:
    first, second = write(tmp_path / "x", range(5)), write(tmp_path / "y", range(5, 9))
    urls = [second, ("", first), second]
    merge_index(urls, str(tmp_path), keep_local=True)
    assert ids(tmp_path) == [5, 6, 7, 8, 0, 1, 2, 3, 4]
    remote = tmp_path / "remote"
    assert merge_index(urls, (str(tmp_path), str(remote)), False) is None
    assert (remote / "index.json").exists() and not (tmp_path / "index.json").exists()


def test_merging_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing to merge"):
        merge_index(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="Check data availability"):
        merge_index([str(tmp_path / "no" / "index.json")], str(tmp_path))
    for args in ((), (3,), ([], 3), (str(tmp_path), True, 60, 1)):
        with pytest.raises(ValueError, match="Invalid arguments to merge_index"):
            merge_index(*args)
    with pytest.raises(FileNotFoundError, match="below 'memory://nowhere': nothing to merge"):
        merge_index("memory://nowhere")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe\x00"])
def test_broken_index(text: bytes) -> None:
    with pytest.raises(json.JSONDecodeError, match="Index file at x is empty or corrupted"):
        parse_index(text, "x")


def test_foreign_index(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Unsupported streaming data version: 1. Expected"):
        parse_index(b'{"version": 1, "shards": []}', "x")
    with pytest.raises(ValueError, match="no list of shards"):
        parse_index(b"[]", "x")
    path = write(tmp_path / "a", range(3))
    index = json.loads(Path(path).read_text())
    data = index["shards"][0]["raw_data"]
    for change, message in (
        ({"samples": ...}, "lacks the field 'samples'"),
        ({"format": ...}, "shard format"),
        ({"version": 1}, "Unsupported streaming data version: 1. Expected version 2"),
        ({"samples": -3}, "cannot have -3 samples"),
        ({"samples": "7"}, "of another type"),
        ({"raw_data": {**data, "more": 1}}, "of another type.*'more'"),
        ({"raw_data": {**data, "basename": "../x.mds"}}, "named '../x.mds', which is not in its"),
        ({"raw_data": {**data, "basename": "/etc/x.mds"}}, "named '/etc/x.mds', which is not in"),
        ({"raw_data": {**data, "bytes": None}}, "cannot have None bytes"),
    ):
        shard = {key: value for key, value in (index["shards"][0] | change).items()}
        broken = {key: value for key, value in shard.items() if value is not ...}
        Path(path).write_text(json.dumps({"version": 2, "shards": [index["shards"][0], broken]}))
        with pytest.raises(ValueError, match=f"{message}.* shard 1 of {path}: write the dataset"):
            LocalDataset(os.path.dirname(path))
    Path(path).write_text(json.dumps({"version": 2, "shards": [5]}))
    with pytest.raises(ValueError, match="'int' object is not a mapping.* shard 0 of"):
        LocalDataset(os.path.dirname(path))


def test_shards_with_another_count_than_the_index_says(tmp_path: Path) -> None:
    path = write(tmp_path / "a", range(3))
    index = json.loads(Path(path).read_text())
    index["shards"][0]["samples"] = 4
    Path(path).write_text(json.dumps(index))
    with pytest.raises(ValueError, match="shard.00000.mds says that it has 3 samples.* says 4"):
        LocalDataset(os.path.dirname(path))[0]
