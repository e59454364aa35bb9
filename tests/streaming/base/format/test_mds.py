"""MDS: every recorded encoding, shard and error."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import LocalDataset, MDSWriter
from streaming.base.compression import decompress
from streaming.base.format.mds import (
    get_mds_encoded_size,
    get_mds_encodings,
    is_mds_encoding_safe,
    mds_decode,
    mds_encode,
)
from streaming.base.format.mds.encodings import Encoding, _encodings
from tests.streaming.shards import assert_same, untag

COMPRESSIONS = ["plain", "br", "bz2", "gz", "snappy", "zstd", "zstd_7"]


@pytest.fixture
def records(golden: Path) -> dict[str, Any]:
    return json.loads((golden / "mds" / "encodings.json").read_text())


@pytest.fixture
def rows(golden: Path) -> list[dict[str, Any]]:
    return untag(json.loads((golden / "mds" / "all_expected_rows.json").read_text()))


def copied(source: Path, target: Path) -> str:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return str(target)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_recorded_shards_give_the_recorded_rows(
    name: str, golden: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    dataset = LocalDataset(copied(golden / "mds" / f"all_{name}", tmp_path / "copy"))
    assert len(dataset) == len(rows)
    for got, want in zip(dataset, rows, strict=True):
        assert_same(got, want)


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_written_shards_are_the_recorded_ones(
    name: str, golden: Path, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    source, out = golden / "mds" / f"all_{name}", tmp_path / "out"
    want = json.loads((source / "index.json").read_text())["shards"]
    first = want[0]
    with MDSWriter(
        columns=dict(zip(first["column_names"], first["column_encodings"], strict=True)),
        out=str(out),
        compression=first["compression"],
        hashes=first["hashes"],
        size_limit=6000,
    ) as writer:
        for row in rows:
            writer.write(row)
    got = json.loads((out / "index.json").read_text())["shards"]
    for mine, theirs in zip(got, want, strict=True):
        packed, recorded = mine.pop("zip_data"), theirs.pop("zip_data")
        assert mine == theirs
        if recorded is None:
            assert packed is None
            name = mine["raw_data"]["basename"]
            assert (out / name).read_bytes() == (source / name).read_bytes()
        else:
            name = packed["basename"]
            assert name == recorded["basename"]
            assert sorted(packed["hashes"]) == sorted(recorded["hashes"])
            raw = decompress(first["compression"], (out / name).read_bytes())
            assert raw == decompress(first["compression"], (source / name).read_bytes())
    if first["compression"] is None:
        assert (out / "index.json").read_text() == (source / "index.json").read_text()


def test_recorded_values(records: dict[str, Any]) -> None:
    assert get_mds_encodings() == set(records["all_encodings"])
    for name, record in records["encodings"].items():
        assert get_mds_encoded_size(name) == record["fixed_size"]
        assert is_mds_encoding_safe(name) == record["safe"]
        for case in record["values"]:
            value = untag(case["value"])
            encoded = mds_encode(name, value)
            assert encoded.hex() == case["encoded_hex"]
            np.testing.assert_array_equal(mds_encode(name, mds_decode(name, encoded)), encoded)
    unsafe = {name for name in get_mds_encodings() if not is_mds_encoding_safe(name)}
    assert unsafe == set(records["unsafe"])


BAD_VALUES = {
    "ndarray scalar": np.int32(3),
    "ndarray 0-d": np.array(3),
    "ndarray empty": np.array([]),
    "ndarray wrong dtype": np.array([1, 2], np.int64),
    "ndarray wrong shape": np.array([1, 2], np.int32),
    "ndarray bool": np.array([True]),
    "ndarray list": [1, 2],
    "str from int": 3,
    "int from str": "3",
    "int from float": 3.0,
    "int from np.int64": np.int64(3),
    "uint8 overflow": 256,
    "uint8 negative": -1,
    "json set": {1},
    "bytes from str": "x",
    "str_float from int": 3,
    "unknown": 3,
}


def test_recorded_errors(records: dict[str, Any]) -> None:
    assert mds_encode("int", True).hex() == records["encode_errors"]["int from bool"]["ok_hex"]
    for name, value in BAD_VALUES.items():
        record = records["encode_errors"][name]
        with pytest.raises(Exception) as caught:
            mds_encode(record["encoding"], value)
        assert type(caught.value).__name__ == record["error"], name
        assert str(caught.value) == record["message"], name


def test_sample_layout(tmp_path: Path) -> None:
    with MDSWriter(columns={"a": "str", "b": "int", "c": "uint8"}, out=str(tmp_path)) as writer:
        data = writer.encode_sample({"a": "x", "b": 1, "c": 1, "ignored": None})
        assert data.hex() == "01000000" + "78" + "0100000000000000" + "01"
        assert writer.encode_sample({"a": b"\xff", "b": bytes(8), "c": 0})[4:5] == b"\xff"
        with pytest.raises(KeyError, match="'b'"):
            writer.write({"a": "x"})
        with pytest.raises(KeyError, match="Unexpected data size"):
            writer.write({"a": "x", "b": b"123", "c": 1})


@pytest.mark.parametrize(
    ("encoding", "array"),
    [
        ("ndarray", np.arange(3, dtype=np.int32)),
        ("ndarray", np.arange(70000, dtype=np.uint8)),
        ("ndarray", np.ones((2, 300, 1), np.float16)),
        ("ndarray:int32", np.arange(6, dtype=np.int32).reshape(2, 3)),
        ("ndarray:float64:2,2", np.eye(2)),
        ("ndarray", np.arange(3).astype(">i4")),
        ("ndarray", np.arange(8)[::2]),
    ],
)
def test_arrays_come_back(encoding: str, array: np.ndarray, tmp_path: Path) -> None:
    with MDSWriter(columns={"x": encoding, "y": "str"}, out=str(tmp_path)) as writer:
        writer.write({"x": array, "y": "after"})
    got = LocalDataset(str(tmp_path))[0]
    assert got["y"] == "after"
    np.testing.assert_array_equal(got["x"], array)
    assert got["x"].dtype == array.dtype.newbyteorder("=")
    assert not got["x"].flags.writeable
    np.testing.assert_array_equal(mds_decode(encoding, mds_encode(encoding, array)), array)


def test_a_value_that_does_not_fit_is_named_by_its_column(tmp_path: Path) -> None:
    with MDSWriter(columns={"a": "ndarray:int32", "b": "str"}, out=str(tmp_path)) as writer:
        with pytest.raises(ValueError, match=r"Column 'a' \(ndarray:int32\): .* with 0 elements"):
            writer.write({"a": np.empty(0, np.int32), "b": "text"})  # B119
        with pytest.raises(AttributeError, match=r"Column 'b' \(str\): "):
            writer.write({"a": np.ones(1, np.int32), "b": 3})
        with pytest.raises(KeyError, match=r"no column 'b', only \['a'\]"):
            writer.write({"a": np.ones(1, np.int32)})
        writer.write({"a": np.ones(1, np.int32), "b": "text"})
    assert len(LocalDataset(str(tmp_path))) == 1


@pytest.mark.parametrize(
    ("encoding", "error"),
    [("foo", TypeError), ("foo:3", TypeError), ("int:3", ValueError), ("ndarray:bool", ValueError)],
)
def test_unknown_columns_are_refused(encoding: str, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match=encoding.partition(":")[2] or encoding):
        MDSWriter(columns={"a": encoding}, out=str(tmp_path / "out"))


def test_own_encodings(tmp_path: Path) -> None:
    class Reversed(Encoding):
        def encode(self, obj: str) -> bytes:
            return obj[::-1].encode()

        def decode(self, data: bytes) -> str:
            return data.decode()[::-1]

    _encodings["reversed"] = Reversed
    try:
        with MDSWriter(columns={"a": "reversed"}, out=str(tmp_path)) as writer:
            writer.write({"a": "abc"})
        assert LocalDataset(str(tmp_path))[0] == {"a": "abc"}
    finally:
        del _encodings["reversed"]


def test_pickled_columns_need_leave(tmp_path: Path) -> None:
    with MDSWriter(columns={"a": "pkl"}, out=str(tmp_path)) as writer:
        writer.write({"a": {1, 2}})
    with pytest.raises(ValueError, match="Column a contains an unsafe type: pkl"):
        LocalDataset(str(tmp_path))
    assert LocalDataset(str(tmp_path), allow_unsafe_types=True)[0] == {"a": {1, 2}}
