"""Data preparation: the same rows whatever the number of processes, whole folders or none."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from composer.utils.object_store.s3_object_store import S3ObjectStore
from llmfoundry.command_utils import (
    convert_dataset_hf,
    convert_dataset_json,
    convert_text_to_mds_from_args,
)
from llmfoundry.command_utils.data_prep import _text_files, _tokenizing
from llmfoundry.command_utils.data_prep._json_rows import json_files, read_texts
from llmfoundry.command_utils.data_prep._text_files import read_pieces
from llmfoundry.command_utils.data_prep._writing import DONE_FILENAME
from llmfoundry.utils.exceptions import (
    CannotUnicodeDecodeFile,
    DatasetTooSmallError,
    InputFolderMissingDataError,
    InvalidDatasetError,
    OutputFolderNotEmptyError,
)
from streaming import StreamingDataset
from streaming.base.local import LocalDataset
from tests.composer.utils.object_store.faults import Proxy
from tests.llmfoundry.tiny_tokenizer import TEXT, train_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "finetuning"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> str:
    train_tokenizer().save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


def files_of(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


@pytest.mark.filterwarnings("ignore:You specified .* which is not one token")
@pytest.mark.parametrize("name", ["concat_0", "concat_1", "concat_3", "concat_4", "concat_5"])
def test_json_shards_are_those_of_upstream(name: str, tmp_path: Path) -> None:
    case = next(
        each for each in json.loads((GOLDEN / "concat.json").read_text()) if each["dir"] == name
    )
    index = json.loads((GOLDEN / name / "index.json").read_text())
    convert_dataset_json(
        path=str(GOLDEN / "pretrain_json" / "train.jsonl"),
        out_root=str(tmp_path / "out"),
        compression=index["shards"][0]["compression"],
        concat_tokens=case["concat_tokens"],
        split="train",
        tokenizer=str(GOLDEN / "tokenizer"),
        bos_text=case["bos_text"],
        eos_text=case["eos_text"],
        no_wrap=case["no_wrap"],
    )
    written = json.loads((tmp_path / "out" / "index.json").read_text())
    for shard in (*index["shards"], *written["shards"]):
        (shard["zip_data"] or {}).pop("bytes", None)  # Depends on the version of zstd.
    assert written == index
    rows = [row["tokens"].tolist() for row in LocalDataset(str(tmp_path / "out"))]
    assert rows == case["tokens"]


def test_json_texts_as_they_are(tmp_path: Path) -> None:
    convert_dataset_json(
        path=str(GOLDEN / "pretrain_json"),
        out_root=str(tmp_path / "out"),
        compression=None,
        concat_tokens=None,
        split="train",
    )
    assert files_of(tmp_path / "out") == files_of(GOLDEN / "noconcat")


def test_b73_only_newlines_end_a_row(tmp_path: Path) -> None:
    texts = ["a\u2028b", "c\u0085d", "e\r\nf", "", "g"]
    lines = [
        json.dumps({"text": text, "n": number}, ensure_ascii=False)
        for number, text in enumerate(texts)
    ]
    (tmp_path / "a.jsonl").write_bytes(("\ufeff" + "\r\n".join(lines) + "\r\n\r\n").encode())
    assert list(read_texts([tmp_path / "a.jsonl"])) == texts
    (tmp_path / "b.json").write_text(json.dumps([{"text": text} for text in texts]))
    assert list(read_texts([tmp_path / "b.json"])) == texts
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as out:
        out.write("\n".join(lines))
    (tmp_path / "notes.md").write_text("no")
    assert [each.name for each in json_files(str(tmp_path))] == ["a.jsonl", "b.json", "c.jsonl.gz"]
    assert list(read_texts(json_files(str(tmp_path)))) == texts * 3


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("[1]", "is no object but int"),
        ('{"txt": "a"}', r"no key 'text'; its keys are \['txt'\]"),
        ('{"text": 3}', "no text but 3"),
        ('{"text": "a"', "no JSON"),
        ('{"text": null}', "but None"),
    ],
)
def test_b59_rows_that_are_no_rows(line: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n' + line + "\n" if line != "[1]" else line)
    with pytest.raises(InvalidDatasetError, match=fault) as caught:
        list(read_texts([tmp_path / "a.jsonl"]))
    assert "a.jsonl, " in str(caught.value)


def text_to_mds(tokenizer: str, tmp_path: Path, out: str = "out", **changed: Any) -> Path:
    settings: dict[str, Any] = {
        "output_folder": str(tmp_path / out),
        "input_folder": str(tmp_path / "text"),
        "compression": None,
        "concat_tokens": 16,
        "tokenizer_name": tokenizer,
        "bos_text": None,
        "eos_text": "</s>",
        "use_tokenizer_eos": False,
        "no_wrap": False,
        "processes": 1,
        "reprocess": False,
        "trust_remote_code": False,
        "logging_level": "INFO",
    }
    convert_text_to_mds_from_args(**settings | changed)
    return tmp_path / out


def write_texts(tmp_path: Path, files: int = 5, lines: int = 30) -> None:
    for number in range(files):
        folder = tmp_path / "text" / f"part{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        text = "\n".join(TEXT[(number + line) % 3] for line in range(lines))
        (folder / f"{number}.txt").write_text(text)


def test_b118_rows_do_not_depend_on_processes(
    tokenizer_folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_texts(tmp_path)
    monkeypatch.setattr(_text_files, "PIECE_CHARACTERS", 200)
    one = files_of(text_to_mds(tokenizer_folder, tmp_path, "one"))
    report = capsys.readouterr().out
    monkeypatch.setattr(_tokenizing, "BATCH_CHARACTERS", 100)
    monkeypatch.setattr(_tokenizing, "BATCHES_THAT_PAY", 2)
    two = files_of(text_to_mds(tokenizer_folder, tmp_path, "two", processes=2))
    done = ".text_to_mds_conversion_done"
    assert one.pop(done) and two.pop(done)
    assert one == two
    assert capsys.readouterr().out.splitlines()[1:] == report.splitlines()[1:]
    tokenizer = train_tokenizer()
    names = sorted((tmp_path / "text").rglob("*.txt"))
    texts = [each.read_text() for each in names]
    tokens = sum(len(ids) + 1 for ids in tokenizer(texts)["input_ids"])
    samples, left = divmod(tokens, 16)
    assert f"tokens: {tokens:,}\n" in report
    assert f"samples written: {samples:,}" in report
    assert f"left over at the end: {left} tokens" in report
    rows = [row["tokens"].tolist() for row in LocalDataset(str(tmp_path / "one"))]
    assert len(rows) == samples
    flat = [token for row in rows for token in row]
    expected = [t for ids in tokenizer(texts)["input_ids"] for t in [*ids, tokenizer.eos_token_id]]
    assert flat == expected[: len(flat)]


def test_texts_packed_by_best_fit(
    tokenizer_folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    texts = [TEXT[0].replace(" ", "\n")[: 4 * number] for number in range(1, 12)]
    for number, text in enumerate(texts):
        (folder / f"{number:02}.txt").write_text(text)
    monkeypatch.setattr(_text_files, "PIECE_CHARACTERS", 20)
    out = text_to_mds(tokenizer_folder, tmp_path, packing="best_fit")
    report = capsys.readouterr().out
    assert "'packing': 'best_fit'" in (out / DONE_FILENAME).read_text()
    tokenizer = train_tokenizer()
    wholes = [[*ids, tokenizer.eos_token_id] for ids in tokenizer(texts)["input_ids"]]
    rows = list(LocalDataset(str(out)))
    assert sorted(n for row in rows for n in row["document_lengths"].tolist()) == sorted(
        len(each[start : start + 16]) for each in wholes for start in range(0, len(each), 16)
    )
    cut, tokens = sum(len(each) > 16 for each in wholes), sum(map(len, wholes))
    assert f"documents: {len(texts)} (0 empty)\n" in report
    assert f"longer than a sample: {cut} documents\n" in report and cut > 0
    assert f"padding: {16 * len(rows) - tokens} tokens (" in report
    text_to_mds(tokenizer_folder, tmp_path, packing="best_fit")
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["word " * 400, "a\nb c\nd " * 300, "x" * 1500, "ab\n\n" * 300])
def test_pieces_join_to_the_text(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_text_files, "PIECE_CHARACTERS", 200)
    (tmp_path / "a.txt").write_text(text)
    pieces = list(read_pieces(str(tmp_path / "a.txt")))
    assert "".join(pieces) == text and len(pieces) > 1
    if text[0] != "x":
        tokenizer = train_tokenizer()
        ids = [token for piece in pieces for token in tokenizer(piece)["input_ids"]]
        assert len(ids) - len(tokenizer(text)["input_ids"]) <= len(pieces) // 2


def test_the_same_call_again_does_nothing(
    tokenizer_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_texts(tmp_path)
    out = text_to_mds(tokenizer_folder, tmp_path)
    before = {each.name: each.stat().st_mtime_ns for each in out.iterdir()}
    text_to_mds(tokenizer_folder, tmp_path, processes=4)
    assert "nothing to do" in capsys.readouterr().out
    assert before == {each.name: each.stat().st_mtime_ns for each in out.iterdir()}
    with pytest.raises(OutputFolderNotEmptyError):
        text_to_mds(tokenizer_folder, tmp_path, reprocess=True)
    with pytest.raises(OutputFolderNotEmptyError):
        text_to_mds(tokenizer_folder, tmp_path, concat_tokens=8)
    with pytest.raises(OutputFolderNotEmptyError):
        text_to_mds(tokenizer_folder, tmp_path, packing="best_fit")
    (tmp_path / "text" / "more.txt").write_text("the cat")
    with pytest.raises(OutputFolderNotEmptyError):
        text_to_mds(tokenizer_folder, tmp_path)


def test_what_text_prep_refuses(tokenizer_folder: str, tmp_path: Path) -> None:
    with pytest.raises(InputFolderMissingDataError, match="No text files were found"):
        text_to_mds(tokenizer_folder, tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("a b")
    with pytest.raises(DatasetTooSmallError, match="too few to fill one row of 16"):
        text_to_mds(tokenizer_folder, tmp_path)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="without a separating token"):
        text_to_mds(tokenizer_folder, tmp_path, eos_text=None)
    with pytest.raises(ValueError, match="packing='bestfit' is none of concat, best_fit"):
        text_to_mds(tokenizer_folder, tmp_path, packing="bestfit")
    with pytest.raises(ValueError, match="no_wrap has no effect with packing=best_fit"):
        text_to_mds(tokenizer_folder, tmp_path, packing="best_fit", no_wrap=True)
    with pytest.raises(ValueError, match="both name the token"):
        text_to_mds(tokenizer_folder, tmp_path, use_tokenizer_eos=True)
    (tmp_path / "text" / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(CannotUnicodeDecodeFile, match=r"b\.txt"):
        text_to_mds(tokenizer_folder, tmp_path)


def test_texts_and_tokens_in_a_store(tokenizer_folder: str, tmp_path: Path, s3: Proxy) -> None:
    (tmp_path / "text" / "inner").mkdir(parents=True)
    (tmp_path / "text" / "a.txt").write_text(" ".join(TEXT) * 3)
    (tmp_path / "text" / "inner" / "b.txt").write_text(" ".join(TEXT))
    here = text_to_mds(tokenizer_folder, tmp_path)
    store, there = S3ObjectStore("bucket"), {"input_folder": "s3://bucket/text"}
    there["output_folder"] = "s3://bucket/out/"
    for name in ("a.txt", "inner/b.txt"):
        store.upload_object(f"text/{name}", tmp_path / "text" / name)
    s3.faults += [("GET", "503"), ("PUT", "500")]
    s3.seen.clear()
    text_to_mds(tokenizer_folder, tmp_path, **there)
    puts = [path for method, path, _headers in s3.seen if method == "PUT"]
    assert [path.rpartition("/")[2] for path in puts[-2:]] == ["index.json", DONE_FILENAME]
    copy = tmp_path / "copy"
    dataset = StreamingDataset(remote="s3://bucket/out", local=str(copy), batch_size=1)
    assert dataset[0]["tokens"].size > 0
    for path in [*here.glob("shard*"), here / "index.json"]:
        assert (copy / path.name).read_bytes() == path.read_bytes()
    s3.seen.clear()
    text_to_mds(tokenizer_folder, tmp_path, **there)  # is there already
    assert "PUT" not in s3.methods()
    store.upload_object("text/c.txt", tmp_path / "text" / "a.txt")
    with pytest.raises(OutputFolderNotEmptyError):
        text_to_mds(tokenizer_folder, tmp_path, **there)
    with pytest.raises(InputFolderMissingDataError):
        text_to_mds(tokenizer_folder, tmp_path, input_folder="s3://bucket/nothing")


def test_use_tokenizer_eos_and_other_texts(tokenizer_folder: str, tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for name in ("a.md", "b.rst", "c.png"):
        (folder / name).write_text(" ".join(TEXT))
    out = text_to_mds(tokenizer_folder, tmp_path, eos_text=None, use_tokenizer_eos=True)
    done = (out / ".text_to_mds_conversion_done").read_text().splitlines()
    assert [Path(each).name for each in done[1:]] == ["a.md", "b.rst"]
    assert "'eos_text': '</s>'" in done[0] and "packing" not in done[0]


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_a_killed_call_leaves_nothing_and_is_repeated(
    packing: str, tokenizer_folder: str, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        "scripts/data_prep/convert_text_to_mds.py",
        "--output_folder",
        str(tmp_path / "out"),
        "--input_folder",
        str(tmp_path / "text"),
        "--concat_tokens",
        "16",
        "--tokenizer",
        tokenizer_folder,
        "--eos_text",
        "</s>",
        "--processes",
        "1",
        *([] if packing == "concat" else ["--packing", packing]),
    ]
    write_texts(tmp_path, files=3, lines=20_000)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "out.unfinished").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not (tmp_path / "out").exists() and (tmp_path / "out.unfinished").exists()
    write_texts(tmp_path, files=3)
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert not (tmp_path / "out.unfinished").exists()
    settings = {"compression": "zstd", "packing": packing}
    alone = files_of(text_to_mds(tokenizer_folder, tmp_path, "alone", **settings))
    again = files_of(tmp_path / "out")
    assert alone.pop(".text_to_mds_conversion_done") and again.pop(".text_to_mds_conversion_done")
    assert alone == again


def test_hub_data(tokenizer_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[dict[str, Any]] = []

    def load_dataset(**arguments: Any) -> list[dict[str, str]]:
        asked.append(arguments)
        return [{"text": " ".join(TEXT)}] * 200

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    settings: dict[str, Any] = {
        "dataset": "allenai/c4",
        "data_subset": "en",
        "splits": ["val_xxsmall"],
        "out_root": str(tmp_path / "c4"),
        "compression": None,
        "concat_tokens": 8,
        "tokenizer": tokenizer_folder,
        "tokenizer_kwargs": {},
        "bos_text": "",
        "eos_text": "</s>",
        "no_wrap": False,
        "num_workers": 1,
    }
    convert_dataset_hf(**settings)
    assert asked == [{"path": "allenai/c4", "name": "en", "split": "validation", "streaming": True}]
    assert len(LocalDataset(str(tmp_path / "c4" / "val_xxsmall"))) == 100
    convert_dataset_hf(**settings | {"packing": "best_fit", "out_root": str(tmp_path / "packed")})
    packed = list(LocalDataset(str(tmp_path / "packed" / "val_xxsmall")))
    assert len(packed) == 100 and packed[0].keys() == {"tokens", "document_lengths"}
    with pytest.raises(ValueError, match="not empty"):
        convert_dataset_hf(**settings)
    with pytest.raises(ValueError, match="Constants for dataset 'x' not found"):
        convert_dataset_hf(**settings | {"dataset": "x"})
    with pytest.raises(KeyError, match="Constants not defined for split"):
        convert_dataset_hf(**settings | {"splits": ["dev"]})
    with pytest.raises(ValueError, match="must specify a tokenizer"):
        convert_dataset_hf(**settings | {"tokenizer": None, "splits": ["val"]})
    with pytest.raises(ValueError, match="eos_text has no effect"):
        convert_dataset_hf(**settings | {"concat_tokens": None, "splits": ["val"]})
    with pytest.raises(ValueError, match="packing has no effect without concat_tokens. Give it"):
        bare = {"concat_tokens": None, "eos_text": "", "splits": ["val"]}
        convert_dataset_hf(**settings | bare | {"packing": "best_fit"})
