"""Data sets of rows: what stays, what is counted, and which row an error is about."""

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest

from llmfoundry.data.finetuning import tokenized_rows
from llmfoundry.data.finetuning.collator import Seq2SeqFinetuningCollator
from llmfoundry.data.finetuning.preprocessing import dataset_constructor
from llmfoundry.data.finetuning.sources import load_rows
from llmfoundry.data.finetuning.stitching import TargetPolicy
from llmfoundry.data.finetuning.tokenized_rows import tokenize_rows
from llmfoundry.utils import exceptions
from tests.llmfoundry.data.finetuning.conftest import GOLDEN

GOOD = {"prompt": "a b", "response": "c d"}
CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


def chat_of(*messages: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"prompt": 5, "response": "x"}, "InvalidPromptTypeError"),
        ({"prompt": ["a"], "response": "x"}, "InvalidPromptTypeError"),
        ({"prompt": None, "response": "x"}, "InvalidPromptTypeError"),
        ({"prompt": "x", "response": None}, "InvalidResponseTypeError"),
        ({"prompt": "x", "response": {"a": 1}}, "InvalidResponseTypeError"),
        ({"prompt": "x"}, "InvalidResponseTypeError"),
        ({**GOOD, "z": 1}, "UnknownExampleTypeError"),
    ],
)
def test_b59_a_malformed_row_is_named(row: Any, error: str, tmp_path: Path, gpt2: Any) -> None:
    file = write(tmp_path / "train.jsonl", GOOD, GOOD, row)
    with pytest.raises(getattr(exceptions, error), match=f"Row 3 of {file}") as caught:
        dataset_constructor.build_from_hf(file, "train", tokenizer=gpt2)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (chat_of(("user", "a"), ("assistant", "b"), ("user", "c")), "InvalidLastChat.*"),
        (chat_of(("bot", "a"), ("assistant", "b")), "InvalidRoleError"),
        (chat_of(("user", "a"), ("user", "b"), ("assistant", "c")), "ConsecutiveRepeated.*"),
        (chat_of(("user", 3), ("assistant", "b")), "InvalidContentTypeError"),
        (chat_of(("user", None), ("assistant", "b")), "InvalidContentTypeError"),
        (chat_of(("assistant", "b")), "NotEnoughChatDataError"),
    ],
)
def test_b71_a_faulty_chat_is_named(row: Any, error: str, tmp_path: Path, gpt2: Any) -> None:
    file = write(tmp_path / "train.jsonl", CHAT, row)
    with pytest.raises(exceptions.UserError, match=f"Row 2 of {file}") as caught:
        dataset_constructor.build_from_hf(file, "train", tokenizer=gpt2)
    assert type(caught.value).__name__.startswith(error.removesuffix(".*"))


def test_rows_are_counted_by_what_becomes_of_them(
    gpt2: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rows = dataset_constructor.build_from_hf(
        str(GOLDEN / "pr"), "train", tokenizer=gpt2, max_seq_len=16
    )
    assert len(rows) == 6 and rows.column_names == ["turns"]
    (told,) = [each.message for each in caplog.records if "Fine-tuning data" in each.message]
    for part in (
        "rows: 12, of which 6 stay",
        "cut at max_seq_len: 1 rows",
        "dropped: 1 rows (empty answer)",
        "dropped: 1 rows (empty prompt)",
        "dropped: 4 rows (nothing to learn within max_seq_len)",
    ):
        assert part in told
    with pytest.raises(
        exceptions.InvalidDatasetError, match="No samples are left.*dropped: 10 rows"
    ):
        dataset_constructor.build_from_hf(
            str(GOLDEN / "pr"), "train", tokenizer=gpt2, max_seq_len=1
        )


@pytest.mark.parametrize("responses", ["last", "all"])
def test_counts_are_those_of_the_batches(responses: str, gpt2: Any) -> None:
    rows = load_rows(str(GOLDEN / "chat"), "train")
    turns, report = tokenize_rows(rows, "chat", gpt2, TargetPolicy(2048, "none", responses))
    gpt2.pad_token = gpt2.eos_token
    batch = Seq2SeqFinetuningCollator(gpt2, 2048, True, responses)(list(turns))
    assert report.tokens == int(batch["attention_mask"].sum())
    assert report.learnt == int((batch["labels"] != -100).sum())
    assert report.fates == {"kept": 4} and report.as_dict()["rows"] == 4


def test_rows_of_several_kinds_in_one_file(tmp_path: Path, gpt2: Any) -> None:
    with_names = {"messages": [{**each, "name": None} for each in CHAT["messages"]]}
    rows = [GOOD, {"prompt": "x", "completion": "y"}, CHAT, with_names]
    file = write(tmp_path / "train.jsonl", *rows)
    assert len(dataset_constructor.build_from_hf(file, "train", tokenizer=gpt2)) == 4


def failing(row: Any) -> Any:
    return {"prompt": row["nope"], "response": ""}


def swapped(row: Any) -> Any:
    return {"prompt": row["response"], "response": row["prompt"]}


def test_a_preprocessing_function_that_fails_names_row_and_columns(gpt2: Any) -> None:
    build = dataset_constructor.build_from_hf
    name = str(GOLDEN / "pr")
    with pytest.raises(
        exceptions.InvalidDatasetError, match="Row 1 of .*failing raised KeyError: 'nope'.*prompt"
    ):
        build(name, "train", tokenizer=gpt2, preprocessing_fn=failing)
    with pytest.raises(exceptions.InvalidDatasetError, match="Row 1 of .*insisting.*no nope"):
        build(name, "train", tokenizer=gpt2, preprocessing_fn=insisting)
    rows = build(name, "train", tokenizer=gpt2, preprocessing_fn=swapped)
    assert rows[0]["turns"] == [
        {"input_ids": [6342, 13], "labels": [2061, 318, 262, 3139, 286, 4881, 30]}
    ]


def test_processes_change_nothing(gpt2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = load_rows(str(GOLDEN / "pr"), "train")
    policy = TargetPolicy(16)
    one, report = tokenize_rows(rows, "pr", gpt2, policy, processes=1)
    monkeypatch.setattr(tokenized_rows, "BATCH_ROWS", 2)
    two, same = tokenize_rows(rows, "pr", gpt2, policy, processes=2)
    assert list(one) == list(two) and report == same


def insisting(row: Any) -> Any:
    assert "nope" in row, "no nope"
    return row


def own_mapping(example: Any, tokenizer: Any) -> dict[str, Any]:
    return {"turns": [{"input_ids": [1], "labels": [len(example["prompt"]), 2]}]}


def test_a_mapping_function_of_ones_own(gpt2: Any) -> None:
    rows = dataset_constructor.build_from_hf(
        str(GOLDEN / "pr"), "train", tokenizer=gpt2, mapping_fn=own_mapping
    )
    assert rows[0] == {"turns": [{"input_ids": [1], "labels": [30, 2]}]} and len(rows) == 12


def test_what_is_cached_is_not_tokenised_again(gpt2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = load_rows(str(GOLDEN / "pr"), "train")
    first = tokenize_rows(rows, "pr", gpt2, TargetPolicy(16))
    monkeypatch.setattr(tokenized_rows, "RowTokenizer", None)
    assert tokenize_rows(rows, "pr", gpt2, TargetPolicy(16))[1] == first[1]
    with pytest.raises(TypeError):  # another policy is another result
        tokenize_rows(rows, "pr", gpt2, TargetPolicy(17))


@pytest.mark.parametrize("part", [0, 2, 1])
def test_a_torn_cache_is_made_again(part: int, gpt2: Any) -> None:
    rows = load_rows(str(GOLDEN / "pr"), "train")
    tokenize_rows(rows, "pr", gpt2, TargetPolicy(16))
    (folder,) = {Path(each["filename"]).parent for each in rows.cache_files}
    (file,) = folder.glob("cache-*.arrow")
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[: (len(data) - 3) * part // 2])
    again, report = tokenize_rows(rows, "pr", gpt2, TargetPolicy(16))
    assert report.fates.total() == 12 and len(again) == 6
    assert file.read_bytes() == data


def test_a_date_is_read_once_and_pinned(gpt2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    days = iter(["01 Jan 2026", "02 Jan 2026", "03 Jan 2026"])
    monkeypatch.setattr(tokenized_rows, "get_date_string", lambda: next(days))
    monkeypatch.setattr(tokenized_rows, "BATCH_ROWS", 1)
    rows = load_rows(str(GOLDEN / "chat"), "train")
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"

    def prompts(date: str | None = None) -> list[str]:
        turns, _ = tokenize_rows(rows, "chat", gpt2, TargetPolicy(2048), date_string=date)
        return [gpt2.decode(each["turns"][0]["input_ids"]) for each in turns]

    for today in ("date_string", "strftime_now('%d %b %Y')"):
        gpt2.chat_template = "{{ " + today + " }} " + template
        read = prompts()
        assert len({each[:11] for each in read}) == 1 and read[0].endswith(read[0][11:])
        assert all(each.startswith("07 Jul 2025 ") for each in prompts("07 Jul 2025"))
    assert read[0].startswith("02 Jan 2026")
    gpt2.chat_template = template
    prompts()
    assert next(days) == "03 Jan 2026"  # nobody asked
