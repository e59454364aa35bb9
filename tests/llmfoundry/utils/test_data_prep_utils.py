"""Files fetched ahead and in order; groups of shards that become one data set."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer.utils.object_store.s3_object_store import S3ObjectStore
from llmfoundry.command_utils.data_prep.convert_text_to_mds import (
    download_and_convert,
    get_object_names,
    get_task_args,
    is_already_processed,
    write_done_file,
)
from llmfoundry.utils import DownloadingIterable, data_prep_utils, merge_shard_groups
from llmfoundry.utils.data_prep_utils import with_id
from streaming.base.format.mds.writer import MDSWriter
from streaming.base.local import LocalDataset
from tests.composer.utils.object_store.faults import Proxy
from tests.llmfoundry.tiny_tokenizer import TEXT, train_tokenizer


def test_files_come_in_order_and_a_few_ahead(
    tmp_path: Path, s3: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, names = S3ObjectStore("bucket"), [f"in/{number}.txt" for number in range(20)]
    for name in names:
        (tmp_path / "a").write_text(name)
        store.upload_object(name, tmp_path / "a")
    s3.seen.clear()
    files = iter(DownloadingIterable(names, str(tmp_path / "copies"), store))
    assert Path(next(files)).read_text() == "in/0.txt"
    assert len({path for _method, path, _headers in s3.seen}) < 10
    assert [Path(each).read_text() for each in files] == names[1:]
    assert [*DownloadingIterable(["a", "b"], "", None)] == ["a", "b"]
    with pytest.raises(FileNotFoundError):
        list(DownloadingIterable(["in/none.txt"], str(tmp_path / "copies"), store))
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(folder)
    monkeypatch.setattr(
        data_prep_utils,
        "get_file",
        lambda name, copy, *_rest, **_settings: shutil.copy(tmp_path / name[5] / "a.txt", copy),
    )
    both = DownloadingIterable(["s3://x/a.txt", "s3://y/a.txt"], str(tmp_path / "copies"), None)
    assert [Path(each).read_text() for each in list(both)] == ["x", "y"]


def test_groups_of_shards_become_one(tmp_path: Path) -> None:
    train_tokenizer().save_pretrained(tmp_path / "tokenizer")
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(5):
        (folder / f"{number}.txt").write_text(" ".join(TEXT) * (number + 1))
    names = get_object_names(str(folder))
    root = tmp_path / "out"
    how = (str(tmp_path / "tokenizer"), 16, "</s>", "", False, "zstd", False)
    tasks = list(get_task_args(names, str(root), str(folder), 3, *how))
    assert [len(task[0]) for task in tasks] == [2, 2, 1]
    rows = []
    for task in tasks:
        download_and_convert(*task)
        rows += [row["tokens"].tolist() for row in LocalDataset(task[1])]
    for path in root.glob("*/shard.00000.mds"):  # what reading has unpacked
        path.unlink()
    merge_shard_groups(str(root))
    assert sorted(each.name for each in root.iterdir()) == [
        "index.json",
        *(f"shard.{number:05}.mds.zstd" for number in range(3)),
    ]
    assert json.loads((root / "index.json").read_text())["version"] == 2
    assert [row["tokens"].tolist() for row in LocalDataset(str(root))] == rows
    with pytest.raises(FileExistsError, match="one data set already"):
        merge_shard_groups(str(root))
    assert len(LocalDataset(str(root))) == len(rows)


def write_groups(root: Path) -> list[int]:
    """Three groups of two shards each, and the numbers in them."""
    for group in range(3):
        where = {"out": str(root / str(group)), "size_limit": 120}
        with MDSWriter(columns={"n": "int"}, compression="zstd", **where) as writer:
            for number in range(2):
                writer.write({"n": 10 * group + number})
        assert len([*(root / str(group)).glob("shard*")]) == 2
    return [10 * group + number for group in range(3) for number in range(2)]


def test_a_merge_that_was_killed_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for moves in range(7):  # six shards and the index
        root, left = tmp_path / str(moves), iter(range(moves))
        numbers = write_groups(root)

        def killed(source: str, target: str, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            os.rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", killed)
            with pytest.raises(KeyboardInterrupt):
                merge_shard_groups(str(root))
        assert not (root / "index.json").exists()
        merge_shard_groups(str(root))
        assert len([*root.iterdir()]) == 7
        assert [row["n"] for row in LocalDataset(str(root))] == numbers


def test_nothing_is_moved_unless_all_is_there(tmp_path: Path) -> None:
    write_groups(tmp_path)
    shard = tmp_path / "2" / "shard.00001.mds.zstd"
    data = shard.read_bytes()
    before = sorted(tmp_path.rglob("*"))
    shard.write_bytes(data[:-1])
    with pytest.raises(FileNotFoundError, match=r"2/shard\.00001\.mds\.zstd, which is not there"):
        merge_shard_groups(str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before
    shard.write_bytes(data)
    (tmp_path / "shard.00005.mds.zstd").touch()
    with pytest.raises(FileExistsError, match="Remove what is not of this data set"):
        merge_shard_groups(str(tmp_path))
    (tmp_path / "shard.00005.mds.zstd").unlink()
    (tmp_path / "half").mkdir()
    with pytest.raises(FileNotFoundError, match=r"half/index\.json"):
        merge_shard_groups(str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "half"])
    with pytest.raises(FileNotFoundError, match="nothing to merge"):
        merge_shard_groups(str(tmp_path / "half"))


def test_names_and_done_files(tmp_path: Path) -> None:
    assert with_id("shard.00007.mds", 123) == "shard.00123.mds"
    assert not is_already_processed(str(tmp_path), "{'a': 1}", ["x"])
    write_done_file(str(tmp_path), "{'a': 1, 'processes': 2}", ["x"])
    assert is_already_processed(str(tmp_path), "{'a': 1, 'processes': 3}", ["x"])
    assert not is_already_processed(str(tmp_path), "{'a': 2}", ["x"])
    assert not is_already_processed(str(tmp_path), "{'a': 1}", ["x", "y"])
