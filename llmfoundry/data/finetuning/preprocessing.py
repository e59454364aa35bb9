"""Known data sets' rows into prompt and response or chats, under the data sets' names."""

from typing import Any

from llmfoundry.data.finetuning.constructor import DatasetConstructor
from llmfoundry.utils.exceptions import UnableToProcessPromptResponseError

__all__ = [
    "QA_format_preprocessor",
    "alpaca_preprocessing_function",
    "dataset_constructor",
    "dolly_preprocessing_function",
    "messages_format_preprocessor",
    "muennighoff_tokenize_function",
    "p3_preprocessing_function",
    "shareGPT_format_preprocessor",
]

Row = dict[str, Any]

dataset_constructor = DatasetConstructor()
"""Knows the preprocessing functions by name; ``@dataset_constructor.register(...)`` adds one."""

RESPONSE_HEADER = "### Response:"
DOLLY_PROMPT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n### Instruction:\n{instruction}\n\n### Response:\n"
)
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}


@dataset_constructor.register("tatsu-lab/alpaca")
def alpaca_preprocessing_function(inp: Row) -> dict[str, str]:
    """Cuts Alpaca's ``text`` behind the header of its response.

    Raises:
        UnableToProcessPromptResponseError: The text has not exactly one such header.
    """
    parts = inp["text"].split(RESPONSE_HEADER)
    if len(parts) != 2:
        raise UnableToProcessPromptResponseError(inp)
    return {"prompt": parts[0] + RESPONSE_HEADER, "response": parts[1]}


@dataset_constructor.register("HuggingFaceH4/databricks_dolly_15k")
def dolly_preprocessing_function(inp: Row) -> dict[str, str]:
    """Writes Dolly's ``instruction`` and ``input`` into Alpaca's prompt."""
    instruction = inp["instruction"]
    if inp["input"]:
        instruction = f"{instruction}\n{inp['input']}"
    return {"prompt": DOLLY_PROMPT.format(instruction=instruction), "response": inp["output"]}


@dataset_constructor.register("bigscience/P3")
def p3_preprocessing_function(inp: Row) -> dict[str, str]:
    """Puts a colon behind P3's ``inputs``, and before its ``targets``."""
    return {"prompt": inp["inputs"] + ":", "response": inp["targets"]}


@dataset_constructor.register("Muennighoff/P3", "Muennighoff/flan")
def muennighoff_tokenize_function(inp: Row) -> dict[str, str]:
    """Puts a space between ``inputs`` and ``targets``, unless there is white space."""
    prompt, response = inp["inputs"], inp["targets"]
    if response and not prompt[-1:].isspace() and not response[0].isspace():
        response = " " + response
    return {"prompt": prompt, "response": response}


@dataset_constructor.register("teknium/OpenHermes-2.5")
def shareGPT_format_preprocessor(inp: Row) -> dict[str, list[dict[str, str]]]:
    """Turns ShareGPT's ``conversations`` into messages."""
    return {
        "messages": [
            {"role": str(SHAREGPT_ROLES.get(each["from"], each["from"])), "content": each["value"]}
            for each in inp["conversations"]
        ]
    }


@dataset_constructor.register("math-ai/StackMathQA")
def QA_format_preprocessor(inp: Row) -> dict[str, list[dict[str, str]]]:
    """Turns a question ``Q`` and an answer ``A`` into messages."""
    return {
        "messages": [
            {"role": "user", "content": inp["Q"]},
            {"role": "assistant", "content": inp["A"]},
        ]
    }


@dataset_constructor.register("AI-MO/NuminaMath-CoT")
def messages_format_preprocessor(inp: Row) -> dict[str, list[dict[str, str]]]:
    """Keeps the messages and leaves out the other columns."""
    return {"messages": inp["messages"]}
