"""Data preparation: the same rows whatever the number of processes, whole folders or none."""

import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from composer.utils.object_store.s3_object_store import S3ObjectStore
from llmfoundry.command_utils import (
    convert_dataset_hf,
    convert_dataset_json,
    convert_text_to_mds_from_args,
)
from llmfoundry.command_utils.data_prep import _text_files, _tokenizing
from llmfoundry.command_utils.data_prep._json_rows import json_files, read_texts
from llmfoundry.command_utils.data_prep._rows import concatenation
from llmfoundry.command_utils.data_prep._text_files import read_pieces
from llmfoundry.command_utils.data_prep._writing import (
    DONE_FILENAME,
    REPORT_FILENAME,
    finished_folder,
)
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
from tests.llmfoundry.command_utils.data_prep.test_word_cache import PRE_TOKENIZERS, trained
from tests.llmfoundry.tiny_tokenizer import TEXT, train_tokenizer

GOLDEN = Path(__file__).parents[2] / "golden" / "finetuning"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> str:
    train_tokenizer().save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


def files_of(folder: Path) -> dict[str, bytes]:
    """Contents by name, without the report, which says how long it took."""
    files = {each.name: each.read_bytes() for each in folder.iterdir()}
    assert json.loads(files.pop(REPORT_FILENAME))["documents"] > 0
    return files


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
    expected = {each.name: each.read_bytes() for each in (GOLDEN / "noconcat").iterdir()}
    assert files_of(tmp_path / "out") == expected


def test_b73_only_newlines_end_a_row(tmp_path: Path) -> None:
    texts = ["a\u2028b", "c\u0085d", "e\r\nf", "", "g"]
    lines = [
        json.dumps({"text": text, "n": number}, ensure_ascii=False)
        for number, text in enumerate(texts)
    ]
    (tmp_path / "a.jsonl").write_bytes(("\ufeff" + "\r\n".join(lines) + "\r\n\r\n").encode())
    assert list(read_texts([str(tmp_path / "a.jsonl")])) == texts
    (tmp_path / "b.json").write_text(json.dumps([{"text": text} for text in texts]))
    assert list(read_texts([str(tmp_path / "b.json")])) == texts
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as out:
        out.write("\n".join(lines))
    (tmp_path / "notes.md").write_text("no")
    assert [Path(each).name for each in json_files(str(tmp_path))] == [
        "a.jsonl",
        "b.json",
        "c.jsonl.gz",
    ]
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
        list(read_texts([str(tmp_path / "a.jsonl")]))
    assert "a.jsonl, " in str(caught.value)


def text_settings(
    tokenizer: str, tmp_path: Path, out: str = "out", **changed: Any
) -> dict[str, Any]:
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
    return settings | changed


def text_to_mds(tokenizer: str, tmp_path: Path, out: str = "out", **changed: Any) -> Path:
    convert_text_to_mds_from_args(**text_settings(tokenizer, tmp_path, out, **changed))
    return tmp_path / out


def write_texts(tmp_path: Path, files: int = 5, lines: int = 30) -> None:
    for number in range(files):
        folder = tmp_path / "text" / f"part{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        text = "\n".join(TEXT[(number + line) % 3] for line in range(lines))
        (folder / f"{number}.txt").write_text(text)


@pytest.mark.parametrize("output_format", ["mds", "tokens"])
def test_b118_rows_do_not_depend_on_processes(
    output_format: str,
    tokenizer_folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_texts(tmp_path)
    monkeypatch.setattr(_text_files, "PIECE_CHARACTERS", 200)
    monkeypatch.setattr(_tokenizing, "BATCH_CHARACTERS", 100)
    monkeypatch.setattr(_tokenizing, "BATCHES_THAT_PAY", 2)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")  # else a later fork may hang
    found = []
    for processes in (1, 2, 3):
        settings = {"processes": processes, "output_format": output_format}
        out = text_to_mds(tokenizer_folder, tmp_path, f"by{processes}", **settings)
        files = files_of(out)
        assert files.pop(DONE_FILENAME)
        found.append((files, capsys.readouterr().out.splitlines()[1:-1]))
    assert found[0] == found[1] == found[2] and "TOKENIZERS_PARALLELISM" not in os.environ
    names = sorted((tmp_path / "text").rglob("*.txt"))
    texts = [each.read_text() for each in names]
    tokenizer = train_tokenizer()
    expected = [t for ids in tokenizer(texts)["input_ids"] for t in [*ids, tokenizer.eos_token_id]]
    samples, left = divmod(len(expected), 16)
    assert [line.strip() for line in found[0][1]] == [
        "documents: 5 (0 empty)",
        f"tokens: {len(expected):,}",
        f"samples written: {samples:,} ({16 * samples:,} tokens)",
        f"left over at the end: {left} tokens (dropped: behind the last)",
    ]
    report = json.loads((tmp_path / "by1" / REPORT_FILENAME).read_text())
    assert report["tokens"] == report["tokens_in_samples"] + report["tokens_left_over"]
    assert report["tokens_left_over"] == left and report["tokens_per_second"] > 0
    if output_format == "mds":
        rows = [row["tokens"].tolist() for row in LocalDataset(str(tmp_path / "by1"))]
        flat = [token for row in rows for token in row]
    else:
        flat = np.fromfile(tmp_path / "by1" / "shard.00000.bin", np.uint16).tolist()
    assert flat == expected[: 16 * samples]


def test_what_flat_files_cannot_hold(tokenizer_folder: str, tmp_path: Path) -> None:
    write_texts(tmp_path)
    with pytest.raises(ValueError, match="holds tokens and nothing else"):
        text_to_mds(tokenizer_folder, tmp_path, output_format="tokens", packing="best_fit")
    with pytest.raises(ValueError, match="format='bin' is none of mds, tokens"):
        text_to_mds(tokenizer_folder, tmp_path, output_format="bin")


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


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@pytest.mark.parametrize(
    "text", ["word " * 400, "a\nb c\nd\n/" * 300, "x" * 1500, "ab\n\n" * 300, "e.\n/\n/ a\tb" * 200]
)
def test_pieces_join_to_the_text(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_text_files, "PIECE_CHARACTERS", 200)
    (tmp_path / "a.txt").write_bytes(text.encode())
    pieces = list(read_pieces(str(tmp_path / "a.txt"), "a.txt"))
    assert "".join(pieces) == text and len(pieces) > 1
    # Where there is neither a lone space nor a lone newline, a word may be cut.
    if "b\n\n" not in text and "xx" not in text:
        tokenizer = trained(PRE_TOKENIZERS[name])
        ids = [token for piece in pieces for token in tokenizer.encode(piece).ids]
        assert ids == tokenizer.encode(text).ids


def test_the_same_call_again_does_nothing(
    tokenizer_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_texts(tmp_path)
    out = text_to_mds(tokenizer_folder, tmp_path)
    before = {each.name: each.stat().st_mtime_ns for each in out.iterdir()}
    text_to_mds(tokenizer_folder, tmp_path, processes=4)
    assert "nothing to do" in capsys.readouterr().out
    assert before == {each.name: each.stat().st_mtime_ns for each in out.iterdir()}
    text_to_mds(tokenizer_folder, tmp_path, reprocess=True)
    again = {each.name: each.stat().st_mtime_ns for each in out.iterdir()}
    assert before.keys() == again.keys() and all(before[each] < again[each] for each in before)
    with pytest.raises(OutputFolderNotEmptyError):
        text_to_mds(tokenizer_folder, tmp_path, concat_tokens=8, reprocess=True)
    with pytest.raises(OutputFolderNotEmptyError):
        text_to_mds(tokenizer_folder, tmp_path, concat_tokens=8)
    with pytest.raises(OutputFolderNotEmptyError):
        text_to_mds(tokenizer_folder, tmp_path, packing="best_fit")
    (tmp_path / "text" / "more.txt").write_text("the cat")
    with pytest.raises(OutputFolderNotEmptyError):
        text_to_mds(tokenizer_folder, tmp_path)
    text_to_mds(tokenizer_folder, tmp_path, reprocess=True)
    assert "more.txt" in (out / DONE_FILENAME).read_text()


def test_a_registered_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    special, ranks = {"<|endoftext|>": 256}, {bytes([byte]): byte for byte in range(256)}
    made = tiktoken.Encoding(
        "small", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens=special
    )
    monkeypatch.setattr(tiktoken, "get_encoding", {"small": made}.__getitem__)
    kwargs = {"encoding_name": "small"}
    how = concatenation(16, "tiktoken", kwargs, "", "<|endoftext|>", False, 1, "concat")
    assert how is not None and how.row_maker().separators.after == (256,)
    for tokenizing in (how.tokenizing, pickle.loads(pickle.dumps(how.tokenizing))):
        found = _tokenizing.tokenize_in_order(TEXT, tokenizing)
        assert [bytes(ids.tolist()).decode() for ids in found] == TEXT


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
    assert [path.rpartition("/")[2] for path in puts[-2:]] == [DONE_FILENAME, "index.json"]
    copy = tmp_path / "copy"
    dataset = StreamingDataset(remote="s3://bucket/out", local=str(copy), batch_size=1)
    assert dataset[0]["tokens"].size > 0
    store.download_object("out/index.json", tmp_path / "index.json")
    assert (tmp_path / "index.json").read_bytes() == (here / "index.json").read_bytes()
    for path in here.glob("shard*"):
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
    other = tmp_path / "other"
    other.mkdir()
    for path in ("a.md", "c.png", ".hidden.md", "../other/b.rst"):
        (folder / path).write_text(" ".join(TEXT))
    (folder / "linked").symlink_to(other)
    (other / "round").symlink_to(folder)
    out = text_to_mds(tokenizer_folder, tmp_path, eos_text=None, use_tokenizer_eos=True)
    done = (out / ".text_to_mds_conversion_done").read_text().splitlines()
    assert done[1:] == [str(folder / "a.md"), str(folder / "linked" / "b.rst")]
    assert "'eos_text': '</s>'" in done[0] and "packing" not in done[0]


KILLED = """
import sys
from llmfoundry.command_utils import convert_text_to_mds_from_args
from llmfoundry.command_utils.data_prep import _tokenizing
_tokenizing.BATCH_CHARACTERS, _tokenizing.BATCHES_THAT_PAY = 10_000, 2
if __name__ == "__main__":
    convert_text_to_mds_from_args(**eval(sys.argv[1]))
"""


def children(process: int) -> list[int]:
    path = Path(f"/proc/{process}/task/{process}/children")
    return [int(each) for each in path.read_text().split()]


@pytest.mark.slow
def test_a_killed_call_leaves_nothing_and_is_repeated(
    tokenizer_folder: str, tmp_path: Path
) -> None:
    settings = text_settings(tokenizer_folder, tmp_path, processes=2)
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), repr(settings)]
    write_texts(tmp_path, files=3, lines=20_000)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    workers: list[int] = []
    while len(workers) < 3 and time.monotonic() < deadline:  # two, and their resource tracker
        time.sleep(0.01)
        workers = children(running.pid)
    time.sleep(1)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not (tmp_path / "out").exists() and (tmp_path / "out.unfinished").exists()
    while (left := [each for each in workers if Path(f"/proc/{each}").exists()]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not left
    write_texts(tmp_path, files=3)
    text_to_mds(tokenizer_folder, tmp_path, processes=2)
    assert not (tmp_path / "out.unfinished").exists()
    again, alone = tmp_path / "out", text_to_mds(tokenizer_folder, tmp_path, "alone")
    assert again.joinpath(DONE_FILENAME).exists()
    for path in [*alone.glob("shard.*"), alone / "index.json"]:
        assert (again / path.name).read_bytes() == path.read_bytes()
    assert len([*again.iterdir()]) == len([*alone.iterdir()])


def test_two_calls_do_not_write_the_same_folder(tokenizer_folder: str, tmp_path: Path) -> None:
    write_texts(tmp_path)
    with finished_folder(str(tmp_path / "out")) as folder:
        (folder / "theirs").touch()
        with pytest.raises(RuntimeError, match="Another process is writing"):
            text_to_mds(tokenizer_folder, tmp_path)
        assert (folder / "theirs").exists()


def test_an_upload_that_was_cut_off_is_repeated(
    tokenizer_folder: str, tmp_path: Path, s3: Proxy
) -> None:
    lines = [json.dumps({"text": " ".join(TEXT)}) for _ in range(20)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    store = S3ObjectStore("bucket")
    store.upload_object("json/a.jsonl", tmp_path / "a.jsonl")
    settings: dict[str, Any] = {
        "path": "s3://bucket/json",
        "out_root": "s3://bucket/out",
        "compression": None,
        "concat_tokens": 16,
        "split": "train",
        "tokenizer": tokenizer_folder,
        "eos_text": "</s>",
    }
    s3.mood = lambda method: "403" if method == "PUT" and "index" in s3.seen[-1][1] else None
    with pytest.raises(PermissionError):
        convert_dataset_json(**settings)
    names = {name.rpartition("/")[2] for name in store.list_objects("out/")}
    assert names == {REPORT_FILENAME, "shard.00000.mds"}
    with pytest.raises(OutputFolderNotEmptyError):
        convert_dataset_json(**settings | {"concat_tokens": 8})
    s3.mood = lambda method: None
    convert_dataset_json(**settings)
    convert_dataset_json(**settings | {"path": str(tmp_path), "out_root": str(tmp_path / "out")})
    for name in ("index.json", "shard.00000.mds"):
        store.download_object(f"out/{name}", tmp_path / name)
        assert (tmp_path / name).read_bytes() == (tmp_path / "out" / name).read_bytes()
    with pytest.raises(OutputFolderNotEmptyError):
        convert_dataset_json(**settings)


def c4_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int = 200) -> None:
    """Makes ``allenai/c4`` a folder here, which the datasets library takes before the hub's."""
    folder = tmp_path / "allenai" / "c4"
    folder.mkdir(parents=True)
    files = "[{split: train, path: train.jsonl}, {split: validation, path: val.jsonl}]"
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: en\n  data_files: {files}\n---\n"
    )
    lines = [json.dumps({"text": " ".join(TEXT), "url": str(number)}) for number in range(rows)]
    (folder / "train.jsonl").write_text("\n".join(lines[: rows // 2]))
    (folder / "val.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)


def test_hub_data(
    tokenizer_folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    c4_here(tmp_path, monkeypatch)
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
    assert len(LocalDataset(str(tmp_path / "c4" / "val_xxsmall"))) == 100
    convert_dataset_hf(**settings | {"packing": "best_fit", "out_root": str(tmp_path / "packed")})
    packed = list(LocalDataset(str(tmp_path / "packed" / "val_xxsmall")))
    assert len(packed) == 100 and packed[0].keys() == {"tokens", "document_lengths"}
    assert capsys.readouterr().out.count("Wrote ") == 2
    with pytest.raises(ValueError, match="not empty"):
        convert_dataset_hf(**settings)
    # A call that is killed between two splits goes on with what is missing.
    convert_dataset_hf(**settings | {"splits": ["val_xxsmall", "val_xsmall"]})
    told = capsys.readouterr().out
    assert "val_xxsmall is there already" in told and told.count("Wrote ") == 1
    with pytest.raises(ValueError, match="not empty"):
        convert_dataset_hf(**settings | {"splits": ["val_xxsmall", "val"], "concat_tokens": 9})
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
