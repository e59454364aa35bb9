"""Parquet files: rows of any row group, the columns that are read, the cache's bound."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import streaming.base.format.parquet as parquet
from streaming import StreamingDataset


def write(path: Path, count: int = 50, group: int = 7, **columns: Any) -> Path:
    table = pyarrow.table({"id": list(range(count)), **columns})
    pyarrow.parquet.write_table(table, path, row_group_size=group)
    return path


def test_values_are_those_that_pyarrow_gives(tmp_path: Path) -> None:
    texts = [None if n % 7 == 3 else f"text {n} \u00e9" for n in range(50)]
    tokens = [list(range(n)) for n in range(50)]
    path = write(
        tmp_path / "a.parquet", text=texts, tokens=tokens, more=[{"n": n} for n in range(50)]
    )
    dataset = StreamingDataset(local=str(path), batch_size=1)
    expected = pyarrow.parquet.read_table(path).to_pylist()
    for number in np.random.default_rng(0).permutation(50).tolist():
        row = dataset[number]
        assert isinstance(row["tokens"], np.ndarray)
        assert {**row, "tokens": row["tokens"].tolist()} == expected[number]


def test_lists_of_one_length_and_dictionaries_are_read(tmp_path: Path) -> None:
    ids = [None if n == 4 else [n, n + 1] for n in range(50)]
    path = write(
        tmp_path / "a.parquet",
        tokens=pyarrow.array(ids, pyarrow.list_(pyarrow.int32(), 2)),
        text=pyarrow.array(["ab"[n % 2] for n in range(50)]).dictionary_encode(),
    )
    dataset = StreamingDataset(local=str(path), batch_size=1)
    shard: Any = dataset.shards[0]
    assert shard.columns == {"id": "int64", "tokens": "ndarray:int32", "text": "str"}
    rows = list(dataset)
    assert [row["text"] for row in rows] == ["ab"[n % 2] for n in range(50)]
    assert [
        row["tokens"] if n == 4 else row["tokens"].tolist() for n, row in enumerate(rows)
    ] == ids
    assert rows[0]["tokens"].dtype == np.int32


def test_a_null_in_a_list_is_named(tmp_path: Path) -> None:
    ids = [[n, None if n == 9 else 1] for n in range(50)]
    dataset = StreamingDataset(local=str(write(tmp_path / "a.parquet", tokens=ids)), batch_size=1)
    assert dataset[8]["tokens"].tolist() == [8, 1]
    with pytest.raises(ValueError, match=r"row 9 of .*a\.parquet: a list of column 'tokens' holds"):
        dataset[9]


def test_a_column_of_several_chunks_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", tokens=[[n] for n in range(50)])

    class File(pyarrow.parquet.ParquetFile):
        def read_row_group(self, *args: Any, **kwargs: Any) -> Any:
            table = super().read_row_group(*args, **kwargs)
            halves = pyarrow.concat_tables([table.slice(0, 3), table.slice(3)])
            # Over 2 GiB of text, combining leaves several chunks.
            return SimpleNamespace(combine_chunks=lambda: halves)

    monkeypatch.setattr(pyarrow.parquet, "ParquetFile", File)
    rows = list(StreamingDataset(local=str(path), batch_size=1))
    assert [(row["id"], row["tokens"].tolist()) for row in rows] == [(n, [n]) for n in range(50)]


def test_only_the_columns_asked_for_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", content=["x"] * 50)
    kwargs: dict[str, Any] = {"local": str(path), "batch_size": 1}
    assert StreamingDataset(**kwargs, columns={"text": "content"})[3] == {"text": "x"}
    assert StreamingDataset(**kwargs, columns=["id"])[3] == {"id": 3}
    with pytest.raises(ValueError, match=r"no column 'text'; it has \['content', 'id'\]"):
        StreamingDataset(**kwargs, columns=["text"])


def test_row_groups_in_use_are_bounded_and_waste_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.parquet", 400, 10)
    groups = parquet._Groups()
    monkeypatch.setattr(parquet, "_groups", groups)
    monkeypatch.setattr(parquet, "_CACHE_BYTES", 500)
    dataset = StreamingDataset(local=str(path), batch_size=1)
    order = np.random.default_rng(0).permutation(400).tolist() * 3
    with caplog.at_level(logging.WARNING):
        assert [dataset[number]["id"] for number in order] == order
    assert groups._bytes <= 500 and caplog.text.count("Reading Parquet is slow") == 1
