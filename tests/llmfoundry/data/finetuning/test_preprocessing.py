"""Known data sets' rows, and how functions are found."""

from typing import Any

import pytest

from llmfoundry.data.finetuning.constructor import DatasetConstructor
from llmfoundry.data.finetuning.preprocessing import (
    QA_format_preprocessor,
    dataset_constructor,
    dolly_preprocessing_function,
    p3_preprocessing_function,
)
from llmfoundry.data.finetuning.streaming_dataset import StreamingFinetuningDataset
from llmfoundry.utils.exceptions import (
    InvalidPromptResponseKeysError,
    UnableToProcessPromptResponseError,
)

DOLLY = (
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n### Instruction:\n{}\n\n### Response:\n"
)


def by_name(name: str, row: dict[str, Any]) -> Any:
    function = dataset_constructor.get_preprocessing_fn_from_str(None, name)
    assert function is not None
    return function(row)


def test_known_data_sets() -> None:
    assert by_name("tatsu-lab/alpaca", {"text": "Do.\n### Response:\nDone"}) == {
        "prompt": "Do.\n### Response:",
        "response": "\nDone",
    }
    for text in ("no header", "### Response: a ### Response: b"):
        with pytest.raises(UnableToProcessPromptResponseError):
            by_name("tatsu-lab/alpaca", {"text": text})
    row = {"instruction": "Add", "input": "1, 2", "output": "3"}
    assert by_name("HuggingFaceH4/databricks_dolly_15k", row) == {
        "prompt": DOLLY.format("Add\n1, 2"),
        "response": "3",
    }
    assert dolly_preprocessing_function({**row, "input": ""})["prompt"] == DOLLY.format("Add")
    assert p3_preprocessing_function({"inputs": "a", "targets": "b"})["prompt"] == "a:"
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert QA_format_preprocessor({"Q": "a", "A": "b"}) == {"messages": chat}
    assert by_name("AI-MO/NuminaMath-CoT", {"messages": chat, "n": 1}) == {"messages": chat}
    turns = [{"from": "system", "value": "s"}, {"from": "human", "value": "a"}]
    turns += [{"from": "gpt", "value": "b"}]
    assert by_name("teknium/OpenHermes-2.5", {"conversations": turns}) == {
        "messages": [{"role": "system", "content": "s"}, *chat]
    }


@pytest.mark.parametrize(
    ("inputs", "targets", "response"),
    [("a", "b", " b"), ("a ", "b", "b"), ("a", "\nb", "\nb"), ("a", "", ""), ("", "b", " b")],
)
def test_muennighoff_puts_a_space_where_there_is_none(
    inputs: str, targets: str, response: str
) -> None:
    row = {"inputs": inputs, "targets": targets}
    for name in ("Muennighoff/flan", "Muennighoff/P3"):
        assert by_name(name, row) == {"prompt": inputs, "response": response}


def test_functions_are_found_by_name_and_by_import(capsys: pytest.CaptureFixture[str]) -> None:
    own = DatasetConstructor()

    @own.register("mine", "ours")
    def mine(inp: Any) -> Any:
        return inp

    with pytest.raises(ValueError, match="already been registered.*ours"):
        own.register("ours")(mine)
    find = own.get_preprocessing_fn_from_str
    assert find("mine") is find(None, "ours") is mine
    assert find(None, "elsewhere") is None
    assert find(f"{p3_preprocessing_function.__module__}:p3_preprocessing_function") is (
        p3_preprocessing_function
    )
    for name in ("no.such:function", "os.path:nope", "nothing"):
        with pytest.raises(ValueError, match="Failed to import preprocessing function"):
            find(name)
    own.print_registered_tasks()
    assert capsys.readouterr().out == "mine\nours\n"
    assert own.streaming_dataset_class is StreamingFinetuningDataset


def test_a_mapping_of_columns() -> None:
    take = dataset_constructor.get_preprocessing_fn_from_dict
    row = {"question": "a", "answer": "b", "other": 1}
    for mapping in (
        {"prompt": "question", "response": "answer"},
        {"response": "answer", "prompt": "question"},
    ):
        assert take(mapping)(row) == {"prompt": "a", "response": "b"}
    for wrong in (
        {"prompt": "question"},
        {"prompt": "question", "response": "nope"},
        {"prompt": "question", "completion": "answer"},
    ):
        with pytest.raises(InvalidPromptResponseKeysError):
            take(wrong)(row)
