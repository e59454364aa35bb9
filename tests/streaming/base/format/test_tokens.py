"""Flat token files: headers and number types, rows, what is refused, the writer."""

import json
import logging
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import LocalDataset, Stream, StreamingDataset
from streaming.base.format.tokens import TokensReader, TokensWriter


def rows(path: Path, length: int = 4, dtype: str | None = None, **kwargs: Any) -> Any:
    dataset = StreamingDataset(
        local=str(path), max_seq_len=length, token_encoding_type=dtype, batch_size=1, **kwargs
    )
    return np.array([sample["tokens"] for sample in dataset])


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64", ">u2"])
def test_number_types(dtype: str, tmp_path: Path) -> None:
    tokens = np.arange(13).astype(dtype)
    np.save(tmp_path / "with_header.npy", tokens)
    got = rows(tmp_path / "with_header.npy")
    np.testing.assert_array_equal(got, np.arange(12).reshape(3, 4))
    assert got.dtype == np.int64
    if dtype.startswith(">"):
        return
    for name in ("raw.bin", "as_olmo_writes.npy"):
        tokens.tofile(tmp_path / name)
        np.testing.assert_array_equal(rows(tmp_path / name, 4, dtype), got)


def test_the_header_of_llm_c(tmp_path: Path) -> None:
    for magic, version, dtype in ((20240520, 1, "uint16"), (20240801, 7, "uint32")):
        header = struct.pack("<256i", magic, version, 10, *[0] * 253)
        path = tmp_path / f"{dtype}.bin"
        path.write_bytes(header + np.arange(10, dtype=dtype).tobytes())
        np.testing.assert_array_equal(rows(path, 5), np.arange(10).reshape(2, 5))
        path.write_bytes(path.read_bytes()[:-4])
        with pytest.raises(ValueError, match=r"but should be 10\. It is cut short"):
            rows(path, 5)


def test_left_over_tokens_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(2):
        np.arange(11, dtype=np.uint16).tofile(tmp_path / f"{number}.bin")
    with caplog.at_level(logging.WARNING):
        assert len(rows(tmp_path, 4, "uint16")) == 4
    assert "6 tokens at the ends of 2 files" in caplog.text
    with pytest.raises(RuntimeError, match="no samples.*22 tokens fill no row"):
        rows(tmp_path, 12, "uint16")


def test_what_is_no_file_of_tokens(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    np.arange(9, dtype=np.uint8).tofile(path)
    with pytest.raises(ValueError, match=r"a\.bin has 9 bytes.*4 of uint16 and 1 bytes"):
        rows(path, 4, "uint16")
    with pytest.raises(ValueError, match=r"a\.bin does not say.*pass `token_encoding_type`"):
        rows(path)
    with pytest.raises(ValueError, match="must be one of.*but got uint15"):
        rows(path, 4, "uint15")
    for length in (None, 0):
        with pytest.raises(ValueError, match="Pass a positive `max_seq_len`"):
            rows(path, length, "uint8")  # type: ignore[arg-type]
    path = tmp_path / "b.npy"
    for array in (np.zeros(4, np.float32), np.zeros((2, 4), np.int32), np.array(7)):
        np.save(path, array)
        with pytest.raises(ValueError, match=r"b\.npy is an array of .*one dimension"):
            rows(path)
    np.save(path, np.array([{}], object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"b\.npy has numpy's header but cannot be read"):
        rows(path)
    np.save(path, np.zeros(8, np.uint16))
    with pytest.raises(ValueError, match=r"b\.npy holds uint16, but `token_encoding_type`"):
        rows(path, 4, "int32")


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_ids_beyond_the_vocabulary(dtype: str, tmp_path: Path) -> None:
    tokens = np.arange(40).astype(dtype)
    tokens[22] = 500 if dtype == "uint16" else -1
    tokens.tofile(tmp_path / "a.bin")
    stream = Stream(local=str(tmp_path), max_seq_len=8, token_encoding_type=dtype)
    stream.apply_default({})
    shard = stream.get_shards()[0]
    shard.expect(("tokens",), 40)
    assert isinstance(shard, TokensReader) and shard[4]["tokens"].tolist() == list(range(32, 40))
    with pytest.raises(ValueError, match=rf"a\.bin: token 22 is {tokens[22]}.*vocabulary has 40"):
        shard[2]


def test_one_row_is_read_without_its_file(tmp_path: Path) -> None:
    tokens = np.arange(60_000, dtype=np.uint16)
    (tmp_path / "remote").mkdir()
    np.save(tmp_path / "remote" / "a.npy", tokens)
    stream = Stream(remote=str(tmp_path / "remote"), local=str(tmp_path / "cache"), max_seq_len=8)
    stream.apply_default({})
    (shard,) = stream.get_shards()
    (tmp_path / "cache" / "a.npy").unlink()
    assert stream.can_read_one(shard) and not (tmp_path / "cache" / "a.npy").exists()
    np.testing.assert_array_equal(stream.read_one(shard, 7000)["tokens"], tokens[56_000:56_008])
    shard.expect((), 56_003)
    with pytest.raises(ValueError, match="token 56003 is 56003"):
        stream.read_one(shard, 7000)
    assert not (tmp_path / "cache" / "a.npy").exists()


def write(folder: Path, documents: list[list[int]], **kwargs: Any) -> Path:
    with TokensWriter(out=str(folder), **kwargs) as writer:
        for document in documents:
            writer.write({"tokens": document})
    return folder


@pytest.mark.parametrize("compression", [None, "zstd:3"])
def test_the_writer(compression: str | None, tmp_path: Path) -> None:
    documents = [list(range(n, 2 * n)) for n in range(40)]
    kwargs: dict[str, Any] = {"compression": compression, "hashes": ["xxh64"], "size_limit": 600}
    folder = write(tmp_path / "a", documents, dtype="uint32", **kwargs)
    index = json.loads((folder / "index.json").read_text())
    names = [shard["raw_data"]["basename"] for shard in index["shards"]]
    assert len(names) > 3 and index["shards"][0]["dtype"] == "uint32"
    got = rows(folder, 10, validate_hash="xxh64")
    flat = [np.fromfile(folder / name, "<u4") for name in names]
    assert np.concatenate(flat).tolist() == [each for one in documents for each in one]
    expected = [part[: len(part) // 10 * 10].reshape(-1, 10) for part in flat]
    np.testing.assert_array_equal(got, np.concatenate(expected))
    again = write(tmp_path / "b", documents, dtype="uint32", **kwargs)
    assert all((again / path.name).read_bytes() == path.read_bytes() for path in again.iterdir())


def test_rows_written_whole_are_read_whole(tmp_path: Path) -> None:
    made = [list(range(n, n + 8)) for n in range(100)]
    folder = write(tmp_path / "a", made, size_limit=100)
    np.testing.assert_array_equal(rows(folder, 8), made)


def test_the_writer_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`dtype` must be one of"):
        TokensWriter(out=str(tmp_path / "a"), dtype="float32")
    for document, message in (
        ([1, 70000], "70000 do not fit uint16"),
        ([-1], "-1 to -1 do not fit"),
        ([1.5], "must be whole numbers"),
        ([[1, 2]], "in one dimension"),
    ):
        folder = tmp_path / str(document)
        with pytest.raises(ValueError, match=message):
            write(folder, [[1], document])  # type: ignore[list-item]
        assert not (folder / "index.json").exists()
        with pytest.raises(FileNotFoundError):
            LocalDataset(str(folder))
