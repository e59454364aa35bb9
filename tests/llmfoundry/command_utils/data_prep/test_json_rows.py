"""JSON rows: each text or an error with its place, whatever the file's size."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard

from composer.utils.object_store.s3_object_store import S3ObjectStore
from llmfoundry.command_utils.data_prep import _json_rows
from llmfoundry.command_utils.data_prep._json_rows import json_files, read_texts
from llmfoundry.utils.exceptions import CannotUnicodeDecodeFile, InvalidDatasetError
from tests.composer.utils.object_store.faults import Proxy


def texts_of(path: Path) -> list[str]:
    return list(read_texts([str(path)]))


@pytest.mark.parametrize("seed", range(20))
def test_an_array_is_read_in_parts(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = random.Random(seed)
    monkeypatch.setattr(_json_rows, "ARRAY_CHARACTERS", generator.randrange(1, 30))
    rows: list[dict[str, Any]] = [
        {"n": generator.randrange(-9, 10**6), "text": 'a]},["\\ \u00e9' * generator.randrange(5)}
        for _ in range(generator.randrange(12))
    ]
    text = json.dumps(rows, indent=seed % 2 or None, ensure_ascii=seed % 3 == 0)
    start = b"\xef\xbb\xbf\r\n " if seed % 5 else b""
    (tmp_path / "a.json").write_bytes(start + text.encode() + b"\n")
    assert texts_of(tmp_path / "a.json") == [row["text"] for row in rows]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b'[{"text": "a"}, {"text": "b"', "row 2: this is no JSON"),
        (b'[{"text": "a"} {"text": "b"}]', "row 1: '{' follows, no comma"),
        (b'[{"text": "a"}, {"text": nil}]', "row 2: this is no JSON"),
        (b'[{"text": "a"}, {"text": 3}]', "row 2: the row has a 'text' that is no text but 3"),
        (b'{"text": "a"}\n\n{"text": "\\ud800"}', "line 3: .* no Unicode: surrogates not allowed"),
        (b'{"text": "a"}\n{"text": "b"}}\n', "line 2: this is no JSON: Extra data"),
    ],
)
def test_b59_a_fault_has_its_place(body: bytes, fault: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(body)
    with pytest.raises(InvalidDatasetError, match=rf"a\.json, {fault}"):
        texts_of(tmp_path / "a.json")


def test_bytes_that_are_no_text_have_their_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n{"text": "\xff"}\n')
    with pytest.raises(CannotUnicodeDecodeFile, match=r"a\.jsonl, line 2 contains bytes"):
        texts_of(tmp_path / "a.jsonl")
    (tmp_path / "a.json").write_bytes(b'[{"text": "\xff"}]')
    with pytest.raises(CannotUnicodeDecodeFile, match=r"a\.json contains bytes"):
        texts_of(tmp_path / "a.json")


def test_packed_files_are_read_to_their_end_or_refused(tmp_path: Path) -> None:
    body = b"".join(b'{"text": "%d"}\n' % number for number in range(60_000))
    frames = [zstandard.compress(part) for part in (body[:600_000], body[600_000:], b"")]
    skipped = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    whole = {"GZ": gzip.compress(body), "ZST": skipped.join(frames)}
    for suffix, packed in whole.items():
        path = tmp_path / f"a.jsonl.{suffix}"
        path.write_bytes(packed)
        assert texts_of(path) == [str(number) for number in range(60_000)]
        ends = [0, 3, 20, len(packed) // 2, len(packed) - 1]
        if suffix == "ZST":
            # There the library's own reader says nothing.
            ends += block_ends(frames[0])
        for end in ends:
            path.write_bytes(packed[:end])
            with pytest.raises(InvalidDatasetError, match=rf"{suffix} is damaged or cut short"):
                texts_of(path)
        path.write_bytes(packed[:40] + b"damage" + packed[46:])
        with pytest.raises((InvalidDatasetError, CannotUnicodeDecodeFile)):
            texts_of(path)


def block_ends(frame: bytes) -> list[int]:
    """Where each block but the last of a zstd frame (RFC 8878) ends."""
    at, ends, is_last = zstandard.frame_header_size(frame), [], False
    while not is_last:
        header = int.from_bytes(frame[at : at + 3], "little")
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        at += 3 + (1 if kind == 1 else size)
        ends.append(at)
    assert len(ends) > 2
    return ends[:-1]


def test_b74_columns_of_files_need_not_agree_but_text_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "id": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"text": "b", "id": "x", "more": null}\n')
    assert list(read_texts(json_files(str(tmp_path)))) == ["a", "b"]
    (tmp_path / "c.jsonl").write_text('{"text": ["c"], "id": 1}\n')
    with pytest.raises(InvalidDatasetError, match=r"c\.jsonl, line 1: .*'text' that is no text"):
        list(read_texts(json_files(str(tmp_path))))


def test_files_in_a_store(tmp_path: Path, s3: Proxy) -> None:
    store = S3ObjectStore("bucket")
    names = [f"json/{number}.jsonl" for number in range(7)]
    for number, name in enumerate(names):
        (tmp_path / "a").write_text(json.dumps({"text": str(number)}))
        store.upload_object(name, tmp_path / "a")
    (tmp_path / "a").write_bytes(gzip.compress(b'{"text": "packed"}'))
    for name in ("json/9.jsonl.gz", "json/inner/1.jsonl", "json/notes.txt"):
        store.upload_object(name, tmp_path / "a")
    files = json_files("s3://bucket/json")
    assert files == [f"s3://bucket/{name}" for name in [*names, "json/9.jsonl.gz"]]
    s3.faults += [("GET", "503"), ("GET", "truncated")]
    assert list(read_texts(files)) == [*"0123456", "packed"]
    assert json_files(f"s3://bucket/{names[0]}") == [f"s3://bucket/{names[0]}"]
    with pytest.raises(FileNotFoundError, match="holds no JSON files"):
        json_files("s3://bucket/none")
