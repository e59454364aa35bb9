"""JSONL files: where lines end, and which file and line is at fault."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streaming.base.format.jsonl as jsonl
from streaming import StreamingDataset

TEXTS = ["plain", "a\u2028b\u2029c", "d\u0085e\x0bf", "", "\u00e9\U0001f600", 'quote " and \\n']


def texts(path: Path, **kwargs: Any) -> list[str]:
    return [row["text"] for row in StreamingDataset(local=str(path), batch_size=1, **kwargs)]


def lines(texts: list[str]) -> list[bytes]:
    return [json.dumps({"text": text}, ensure_ascii=False).encode() for text in texts]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("last", [b"", b"\n", b"\n\n", b"\r\n  \r\n"])
@pytest.mark.parametrize("scan", [1 << 24, 7])
def test_b73_lines_end_at_line_feeds_only(
    end: bytes, bom: bytes, last: bytes, scan: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "_SCAN_BYTES", scan)
    path = tmp_path / "a.jsonl"
    path.write_bytes(bom + end.join(lines(TEXTS)) + last)
    assert texts(path) == TEXTS


def test_blank_lines_and_indented_ones(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"\n\n" + b"\n \n  ".join(lines(TEXTS)))
    assert texts(path) == TEXTS
    path.write_bytes(b'{"text":\r"a"}\r\r\n{"text": "b"}')
    assert texts(path) == ["a", "b"]
    path.write_bytes(b"\n \n\r\n")
    with pytest.raises(ValueError, match=r"a\.ndjson has blank lines only"):
        texts(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', "line 4 is no JSON"),
        (b"[1, 2]", "line 4 is a JSON list, no object"),
        (b"null", "line 4 is a JSON null"),
        (b'{"text": "\xff"}', "line 4 is no JSON"),
        (b'{"text": 5}', "line 4: field 'text' is a number, but was a text in the first row"),
        (b'{"txet": "a"}', r"line 4 has no field 'text', only \['txet'\]"),
    ],
)
def test_b74_a_bad_row_is_named(
    line: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n\n{"text": null, "more": 1}\n' + line + b"\n")
    monkeypatch.setattr(jsonl, "_SCAN_BYTES", 5)
    dataset = StreamingDataset(local=str(path), batch_size=1, columns=["text"])
    assert [dataset[0], dataset[1]] == [{"text": "a"}, {"text": None}]
    with pytest.raises(ValueError, match=message) as caught:
        dataset[2]
    assert "a.jsonl" in str(caught.value)


def test_b74_files_whose_fields_differ(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": "1", "y": null, "z": 1}\n')
    (tmp_path / "b.jsonl").write_text('{"x": 1, "y": [2], "z": 0.5}\n')
    dataset = StreamingDataset(local=str(tmp_path), batch_size=1)
    with pytest.raises(ValueError, match=r"b\.jsonl, line 1: field 'x' is a number"):
        dataset[1]
    taken = StreamingDataset(local=str(tmp_path), batch_size=1, columns=["y", "z"])
    assert list(taken) == [{"y": None, "z": 1}, {"y": [2], "z": 0.5}]


def test_columns_are_chosen_and_renamed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"content": "a", "n": 1}\n')
    kwargs: dict[str, Any] = {"local": str(tmp_path), "batch_size": 1}
    assert StreamingDataset(**kwargs, columns={"text": "content"})[0] == {"text": "a"}
    with pytest.raises(ValueError, match=r"a\.jsonl has no column 'text'; it has \['content'"):
        StreamingDataset(**kwargs, columns=["text"])


def test_rows_of_a_large_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made = ["x" * int(length) for length in rng.integers(0, 300, 2000)]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines(made)))
    dataset = StreamingDataset(local=str(tmp_path), batch_size=1)
    for number in rng.integers(0, 2000, 50).tolist():
        assert dataset[number]["text"] == made[number]
