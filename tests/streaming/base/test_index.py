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
    for key, message in (("samples", "lacks the field 'samples'"), ("format", "shard format")):
        broken = {"version": 2, "shards": [{**index["shards"][0]}]}
        del broken["shards"][0][key]
        Path(path).write_text(json.dumps(broken))
        with pytest.raises(ValueError, match=message):
            LocalDataset(os.path.dirname(path))
