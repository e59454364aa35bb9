"""Rows become the turns that upstream made of them; special tokens stand where they belong."""

import json
from typing import Any

import pytest

from llmfoundry.data.finetuning.row_fates import is_valid_ift_example
from llmfoundry.data.finetuning.tasks import slice_chat_formatted_example
from llmfoundry.data.finetuning.tokenization import (
    RowTokenizer,
    get_texts,
    tokenize_formatted_example,
)
from llmfoundry.utils import exceptions
from tests.llmfoundry.data.finetuning.conftest import GOLDEN
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

ROWS = json.loads((GOLDEN / "rows_tokenized.json").read_text())
ERRORS = json.loads((GOLDEN / "row_errors.json").read_text())


@pytest.mark.parametrize("case", ROWS, ids=range(len(ROWS)))
def test_turns_are_those_of_upstream(case: dict[str, Any], gpt2: Any) -> None:
    example = tokenize_formatted_example(case["row"], gpt2)
    assert example == {"turns": case["turns"]}
    if "slices" in case:
        assert [list(each) for each in slice_chat_formatted_example(case["row"], gpt2)] == (
            case["slices"]
        )
    for settings, is_valid in case["valid"].items():
        prompts, responses, length = settings.split("|")
        found = is_valid_ift_example(int(length), prompts, responses, True, example)
        assert found == is_valid, settings


@pytest.mark.parametrize("case", ERRORS, ids=lambda case: case["name"])
def test_errors_are_those_of_upstream(case: dict[str, Any], gpt2: Any) -> None:
    if case.get("ok"):
        assert tokenize_formatted_example(case["row"], gpt2)["turns"]
        return
    kind = getattr(exceptions, case["error"])
    with pytest.raises(kind) as caught:
        tokenize_formatted_example(case["row"], gpt2)
    # Sets are sorted here, and which messages a template was given differs.
    if "{" not in case["message"]:
        assert str(caught.value) == case["message"]


def test_many_rows_at_once_are_as_one_by_one(gpt2: Any) -> None:
    rows = [get_texts(case["row"], gpt2) for case in ROWS]
    assert RowTokenizer(gpt2)(rows) == [case["turns"] for case in ROWS]
    assert RowTokenizer(gpt2)([]) == []


@pytest.mark.parametrize("prompt", ["the cat", "<s>the cat"])
@pytest.mark.parametrize("response", [" sat", "<s> sat", "<s><s> sat</s>"])
def test_b65_c9_one_bos_in_front_and_no_eos_between(prompt: str, response: str) -> None:
    tokenizer = train_tokenizer(bos=True, eos=True)
    (turn,) = tokenize_formatted_example({"prompt": prompt, "response": response}, tokenizer)[
        "turns"
    ]
    plain = tokenizer(["the cat", " sat"], add_special_tokens=False)["input_ids"]
    assert turn["input_ids"] == [tokenizer.bos_token_id, *plain[0]]
    assert turn["labels"] == [*plain[1], tokenizer.eos_token_id]


def test_no_bos_where_the_tokenizer_adds_none() -> None:
    tokenizer = train_tokenizer()
    example = tokenize_formatted_example({"prompt": "the", "response": "<s>cat"}, tokenizer)
    assert tokenizer.bos_token_id not in example["turns"][0]["input_ids"]
    assert tokenizer.bos_token_id not in example["turns"][0]["labels"]


@pytest.mark.parametrize("answer", ["", "  ", "\n\t"])
def test_b59_an_empty_answer_is_empty(answer: str, gpt2: Any) -> None:
    rows: list[Any] = [
        {"prompt": "a", "response": answer},
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": answer},
            ]
        },
    ]
    for row in rows:
        example = tokenize_formatted_example(row, gpt2)
        assert example["turns"][0]["labels"] == []
        assert not is_valid_ift_example(64, "all", "all", True, example)
