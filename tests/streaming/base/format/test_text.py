"""JSON, CSV, TSV and XSV shards."""

import json
from pathlib import Path
from typing import Any

import pytest

from streaming import CSVWriter, JSONWriter, LocalDataset, TSVWriter, XSVWriter

WRITERS: dict[str, Any] = {
    "json": JSONWriter,
    "csv": CSVWriter,
    "tsv": TSVWriter,
    "xsv": lambda **kwargs: XSVWriter(separator="|", **kwargs),
}
COLUMNS = {"t": "str", "n": "int", "f": "float"}


@pytest.mark.parametrize("name", WRITERS)
def test_recorded_shards(name: str, golden: Path, tmp_path: Path) -> None:
    source = golden / "mds" / f"fmt_{name}"
    rows = json.loads((golden / "mds" / "fmt_expected_rows.json").read_text())[name]
    assert list(LocalDataset(str(source))) == rows
    limit = json.loads((source / "index.json").read_text())["shards"][0]["size_limit"]
    out = tmp_path / "out"
    writer = WRITERS[name](columns=COLUMNS, out=str(out), hashes=["sha1"], size_limit=limit)
    with writer:
        for row in rows:
            writer.write(row)
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in source.iterdir())
    for file in source.iterdir():
        assert (out / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize("name", WRITERS)
def test_compressed_shards_come_back(name: str, tmp_path: Path) -> None:
    rows = [{"t": f"row {n} \u00fc", "n": n, "f": n / 4} for n in range(20)]
    with WRITERS[name](
        columns=COLUMNS,
        out=str(tmp_path),
        compression="zstd:7",
        hashes=["sha1", "xxh3_64"],
        size_limit=100,
    ) as writer:
        for row in rows:
            writer.write(row)
    assert all(p.suffix in (".zstd", ".json") for p in tmp_path.iterdir())
    assert list(LocalDataset(str(tmp_path))) == rows


@pytest.mark.parametrize("name", WRITERS)
def test_types_are_strict(name: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="unsupported encoding"):
        WRITERS[name](columns={"a": "float32"}, out=str(tmp_path / "a"))
    with WRITERS[name](columns={"a": "float"}, out=str(tmp_path / "b")) as writer:
        with pytest.raises(AttributeError, match="should be of type"):
            writer.write({"a": 1})


def test_values_cannot_hold_the_separator(tmp_path: Path) -> None:
    with CSVWriter(columns={"a": "str"}, out=str(tmp_path)) as writer:
        for text in ("a,b", "a\nb"):
            with pytest.raises(AssertionError, match="no quoting"):
                writer.write({"a": text})
