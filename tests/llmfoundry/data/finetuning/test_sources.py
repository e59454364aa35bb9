"""Files as tables: which rows they give, and which file and line an error is about."""

import json
import os
from pathlib import Path

import pytest

from llmfoundry.data.finetuning.sources import load_rows
from llmfoundry.utils.exceptions import (
    FinetuningFileNotFoundError,
    InvalidDatasetError,
    InvalidFileExtensionError,
    MisconfiguredHfDatasetError,
)

ROW = {"prompt": "a", "response": "b"}


def test_b73_only_a_newline_ends_a_row(tmp_path: Path) -> None:
    texts = ["a\u2028b\u0085c", "\u000bd\u000ce"]
    lines = [json.dumps({"prompt": each, "response": "x"}, ensure_ascii=False) for each in texts]
    data = (
        "\ufeff"
        + lines[0]
        + "\r\n\r\n"
        + lines[1].replace("\u000b", "\\u000b").replace("\u000c", "\\f")
    )
    (tmp_path / "train.jsonl").write_bytes(data.encode())
    assert load_rows(str(tmp_path), "train")["prompt"][:] == texts


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ('{"prompt": ["a"], "response": 1}', "b.jsonl, line 1: field 'prompt' is list, but str in"),
        ('{"prompt": "a",', "b.jsonl, line 1: this is no JSON"),
        ("[1]", "b.jsonl, line 1: the row is no object but list"),
    ],
)
def test_b74_files_that_are_no_table_are_named(second: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"prompt": None, "response": "b"}) + "\n" + json.dumps(ROW) + "\n"
    )
    (tmp_path / "b.jsonl").write_text(second + "\n")
    files = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    with pytest.raises(MisconfiguredHfDatasetError, match=reason):
        load_rows("json", "train", hf_kwargs={"data_files": {"train": files}})


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(InvalidDatasetError, match="holds no row"):
        load_rows(str(tmp_path), "train")
    (tmp_path / "head.csv").write_text("prompt,response\n")
    with pytest.raises(InvalidDatasetError, match="holds no row"):
        load_rows(str(tmp_path / "head.csv"), "train")


def test_words_of_a_csv_file_stay_words(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('prompt,response\nIs it?,None\nWhich?,NA\n"a, b",""\n')
    rows = load_rows(str(tmp_path / "train.csv"), "train")
    assert rows["response"][:] == ["None", "NA", ""] and rows["prompt"][2] == "a, b"


def test_a_file_has_one_split(tmp_path: Path) -> None:
    file = tmp_path / "any.jsonl"
    file.write_text((json.dumps(ROW) + "\n") * 10)
    assert len(load_rows(str(file), "train[:30%]")) == 3
    with pytest.raises(ValueError, match="validation"):
        load_rows(str(file), "validation")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files_in_a_store(kind: str, tmp_path: Path) -> None:
    import datasets

    table = datasets.Dataset.from_list([ROW] * 4)
    for split in ("train-small", "data"):
        file = str(tmp_path / f"{split}.{kind}")
        table.to_parquet(file) if kind == "parquet" else table.to_json(file)
        address = f"file://{tmp_path}"
        assert len(load_rows(address, split)) == 4 and len(load_rows(address, f"{split}[:2]")) == 2
    with pytest.raises(FinetuningFileNotFoundError, match="validation.parquet"):
        load_rows(f"file://{tmp_path}", "validation")


def test_what_a_store_gives_is_cached_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = tmp_path / "store"
    store.mkdir()
    file = store / "train.jsonl"
    file.write_text(json.dumps(ROW) + "\n")
    time = os.stat(file).st_mtime_ns

    def cached() -> str:
        return load_rows(f"file://{store}", "train").cache_files[0]["filename"]

    first = cached()
    os.utime(file)  # a store tells another time, or none, of the same file
    assert cached() == first
    kept = list(tmp_path.glob("streaming-*/finetuning-*"))
    assert [each.name for each in kept[0].iterdir()] == ["train.jsonl"] and len(kept) == 1
    assert os.stat(file).st_mtime_ns >= time  # it is no link
    file.write_text(json.dumps(ROW | {"prompt": "c"}) + "\n")
    assert cached() != first
    assert kept[0].is_dir()  # what another run may be reading stays


def test_a_torn_cache_is_named(tmp_path: Path) -> None:
    source = tmp_path / "train.jsonl"
    source.write_text((json.dumps(ROW) + "\n") * 3000)
    file = Path(load_rows(str(source), "train").cache_files[0]["filename"])
    data = file.read_bytes()
    for size in (0, len(data) // 2, len(data) - 3):
        file.unlink()  # tests may map it still
        file.write_bytes(data[:size])
        with pytest.raises(MisconfiguredHfDatasetError, match="torn.*datasets_cache"):
            load_rows(str(source), "train")


def test_safe_load_takes_data_files_alone(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(ROW) + "\n")
    assert len(load_rows(str(tmp_path), "train", safe_load=True)) == 1
    (tmp_path / "train.py").write_text("print('no')")
    with pytest.raises(InvalidFileExtensionError):
        load_rows(str(tmp_path), "train", safe_load=True)
