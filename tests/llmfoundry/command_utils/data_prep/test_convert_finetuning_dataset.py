"""Fine-tuning rows into shards: upstream's bytes, the same for any number of processes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest

from composer.utils.object_store.local_object_store import LocalObjectStore
from llmfoundry.command_utils import (
    convert_finetuning_dataset,
    convert_finetuning_dataset_from_args,
)
from llmfoundry.utils.exceptions import (
    InvalidDatasetError,
    InvalidResponseTypeError,
    OutputFolderNotEmptyError,
)
from streaming.base.local import LocalDataset

ROOT = Path(__file__).parents[4]
GOLDEN = ROOT / "tests" / "golden" / "finetuning"
TOKENIZER = str(GOLDEN / "tokenizer")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets_cache"))


def convert(out: Path, **settings: Any) -> dict[str, Any]:
    """Converts the recorded rows, and returns the report."""
    arguments: dict[str, Any] = {
        "dataset": str(GOLDEN / "pr"),
        "data_subset": None,
        "splits": ["train"],
        "preprocessor": None,
        "data_files": [],
        "skip_preprocessing": True,
        "out_root": str(out),
        "local": None,
        "compression": None,
        "num_workers": None,
        "tokenizer": None,
        "tokenizer_kwargs": {},
        "max_seq_len": 2048,
        "target_prompts": "none",
        "target_responses": "last",
        "encoder_decoder": False,
    }
    convert_finetuning_dataset(**{**arguments, **settings})
    split = {**arguments, **settings}["splits"][0]
    return json.loads((out / split / "data_prep_report.json").read_text())


def index_of(folder: Path) -> Any:
    index = json.loads((folder / "index.json").read_text())
    for shard in index["shards"]:
        (shard["zip_data"] or {}).pop("bytes", None)  # depends on the version of zstd
    return index


def test_texts_are_those_of_upstream(tmp_path: Path) -> None:
    report = convert(tmp_path / "out")
    for name in ("index.json", "shard.00000.mds"):
        written = (tmp_path / "out" / "train" / name).read_bytes()
        assert written == (GOLDEN / "pr_mds" / "train" / name).read_bytes()
    assert report["rows"] == report["rows_kept"] == 12 and report["empty_answers"] == 1


@pytest.mark.parametrize("processes", [None, 3])
def test_turns_are_those_of_upstream(processes: int | None, tmp_path: Path) -> None:
    report = convert(
        tmp_path / "out",
        tokenizer=TOKENIZER,
        max_seq_len=64,
        compression="zstd",
        num_workers=processes,
    )
    written, recorded = tmp_path / "out" / "train", GOLDEN / "pr_mds_tok" / "train"
    assert index_of(written) == index_of(recorded)
    copy = shutil.copytree(recorded, tmp_path / "recorded")
    assert list(LocalDataset(str(written))) == list(LocalDataset(str(copy)))
    assert report["rows_dropped"] == {
        "empty answer": 1,
        "empty prompt": 1,
        "nothing to learn within max_seq_len": 1,
    }
    assert (report["rows"], report["rows_kept"], report["rows_cut"]) == (12, 9, 0)
    assert (report["tokens"], report["tokens_learnt"]) == (197, 85)


def test_chats_and_splits_from_files(tmp_path: Path) -> None:
    chat = str(GOLDEN / "chat" / "train.jsonl")
    settings = {"dataset": "json", "splits": ["a", "b"], "data_files": [chat, chat]}
    convert(tmp_path / "text", **settings)
    rows = [json.loads(line) for line in Path(chat).read_text().splitlines()]
    for split in ("a", "b"):
        assert list(LocalDataset(str(tmp_path / "text" / split))) == rows
    convert(tmp_path / "turns", tokenizer=TOKENIZER, **settings)
    recorded = json.loads((GOLDEN / "rows_tokenized.json").read_text())[-4:]
    turns = [row["turns"] for row in LocalDataset(str(tmp_path / "turns" / "b"))]
    assert turns == [case["turns"] for case in recorded]


def test_empty_answers_of_chats_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for answers in (("a", " "), ("", "a"), ("a", "b")):
        each = zip(("user", "assistant") * 2, ("q", answers[0], "q", answers[1]))
        messages = [{"role": role, "content": text} for role, text in each]
        with file.open("a") as out:
            out.write(json.dumps({"messages": messages}) + "\n")
    report = convert(tmp_path / "out", dataset=str(file))
    assert (report["rows"], report["empty_answers"]) == (3, 2)


def test_rows_are_preprocessed(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"text": "Do.\n### Response: Done"}) + "\n")
    settings = {"dataset": str(file), "skip_preprocessing": False}
    convert(tmp_path / "out", preprocessor="tatsu-lab/alpaca", **settings)
    (row,) = LocalDataset(str(tmp_path / "out" / "train"))
    assert row == {"prompt": "Do.\n### Response:", "response": " Done"}
    with pytest.raises(ValueError, match="No preprocessing function is registered"):
        convert(tmp_path / "none", **settings)


def test_a_copy_is_kept_and_a_store_is_written(tmp_path: Path) -> None:
    out = f"file://{tmp_path}/store"
    with pytest.raises(FileNotFoundError):  # the report is looked for here, and is in the store
        convert(Path(out), out_root=out, local=str(tmp_path / "local"))
    for place in ("store", "local"):
        assert len(list(LocalDataset(str(tmp_path / place / "train")))) == 12


def test_a_killed_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(GOLDEN / "pr" / "train.jsonl")
    settings: dict[str, Any] = {"dataset": "json", "splits": ["a", "b"], "data_files": [file] * 2}
    settings |= {"out_root": f"file://{tmp_path}/store", "local": str(tmp_path / "local")}
    upload = LocalObjectStore.upload_object

    def killed(store: LocalObjectStore, name: str, *rest: Any, **settings: Any) -> None:
        if "/b/" in name and "shard" in name:
            raise KeyboardInterrupt
        upload(store, name, *rest, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(LocalObjectStore, "upload_object", killed)
        with pytest.raises(KeyboardInterrupt):
            convert(tmp_path / "local", **settings)
    assert (
        not (tmp_path / "local" / "b").exists() and not (tmp_path / "store/b/index.json").exists()
    )
    with pytest.raises(OutputFolderNotEmptyError):
        convert(tmp_path / "local", **settings, compression="zstd")
    shutil.rmtree(tmp_path / "local" / "a")
    convert(tmp_path / "local", **settings)
    assert "store/a is there already" in capsys.readouterr().out
    for split in ("a", "b"):
        rows = [list(LocalDataset(str(tmp_path / each / split))) for each in ("local", "store")]
        assert rows[0] == rows[1] and len(rows[0]) == 12
    with pytest.raises(ValueError, match="a folder of its own"):
        convert(tmp_path / "local", local=str(tmp_path / "x"), out_root=f"file://{tmp_path}/x/")


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"data_files": ["a.jsonl", "b.jsonl"]}, "2 files for 1 splits"),
        ({"splits": []}, "at least one split"),
        ({"splits": ["train", "train"]}, "each once"),
        ({"max_seq_len": 64}, "no effect without tokenizer"),
        ({"tokenizer_kwargs": {"use_fast": True}}, "no effect without tokenizer"),
        ({"preprocessor": "tatsu-lab/alpaca"}, "no effect with skip_preprocessing"),
        ({"target_prompts": "some", "tokenizer": TOKENIZER}, "target_prompts must"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    settings: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=match):
        convert(tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tokenizer", [None, TOKENIZER])
def test_b59_a_faulty_row_leaves_no_folder(tokenizer: str | None, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "response": "b"}\n{"prompt": "a", "response": 3}\n')
    with pytest.raises(InvalidResponseTypeError, match="Row 2 of"):
        convert(tmp_path / "out", dataset=str(file), tokenizer=tokenizer)
    assert not (tmp_path / "out" / "train").exists()
    file.write_text('{"prompt": "a", "response": " "}\n')
    if tokenizer:
        with pytest.raises(InvalidDatasetError, match="No row stays.*1 rows .empty answer"):
            convert(tmp_path / "out", dataset=str(file), tokenizer=tokenizer)


def test_texts_of_two_kinds_and_full_folders_are_refused(tmp_path: Path) -> None:
    mixed = str(GOLDEN / "mixed_rows" / "rows.jsonl")
    with pytest.raises(InvalidDatasetError, match="Row 13 of .* another kind .chat. than row 1"):
        convert(tmp_path / "out", dataset=mixed)
    assert convert(tmp_path / "out", dataset=mixed, tokenizer=TOKENIZER)["rows_kept"] == 14
    with pytest.raises(OutputFolderNotEmptyError):
        convert(tmp_path / "out", dataset=mixed, tokenizer=TOKENIZER)


def test_script_and_command_take_upstreams_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from llmfoundry.cli.cli import app

    flags = "--dataset json --data{}files X --splits train --skip-preprocessing --out{}root Y "
    flags += "--tokenizer Z --max{}seq{}len 64 --target{}responses all --compression zstd"

    def arguments(dash: str, out: str) -> list[str]:
        files = {"X": str(GOLDEN / "pr" / "train.jsonl"), "Y": str(tmp_path / out), "Z": TOKENIZER}
        return [files.get(each, each) for each in flags.replace("{}", dash).split()]

    result = CliRunner().invoke(
        app, ["data_prep", "convert_finetuning_dataset", *arguments("-", "command")]
    )
    assert result.exit_code == 0, result.output
    script = ROOT / "scripts" / "data_prep" / "convert_finetuning_dataset.py"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "script_cache"))
    subprocess.run([sys.executable, str(script), *arguments("_", "script")], check=True)
    for name in ("index.json", "shard.00000.mds.zstd"):
        written = [
            (tmp_path / each / "train" / name).read_bytes() for each in ("command", "script")
        ]
        assert written[0] == written[1]
    with pytest.raises(json.JSONDecodeError):
        convert_finetuning_dataset_from_args(
            "x",
            None,
            ["train"],
            None,
            [],
            True,
            "y",
            None,
            None,
            None,
            "t",
            "{",
            8,
            "none",
            "last",
            False,
        )
