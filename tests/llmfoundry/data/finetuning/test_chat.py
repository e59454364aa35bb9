"""The answers of a chat are what the template shows that the assistant wrote, or an error."""

import random
from pathlib import Path
from typing import Any

import pytest

from llmfoundry.data.finetuning.chat import DEFAULT_CHAT_TEMPLATE, slice_chat_formatted_example
from llmfoundry.data.finetuning.stitching import stitch_turns_decoder_only
from llmfoundry.data.finetuning.tokenization import tokenize_formatted_example
from llmfoundry.utils.exceptions import ChatTemplateError, InvalidConversationError
from tests.llmfoundry.tiny_tokenizer import train_tokenizer, train_with_spaces

SMOLLM2 = Path(__file__).parents[4] / "data" / "smollm2"
LLAMA = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('no system message') }}{% elif m.role == 'user' %}"
    "{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}"
    "{% endfor %}"
)
CHATML = DEFAULT_CHAT_TEMPLATE.replace("<|im_end|>", "</s>").replace("<|im_start|>", "<s>")
ZEPHYR = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
# Like templates of reasoning models: only the last answer keeps its thoughts.
FORGETFUL = (
    "{% for m in messages %}{{ '<s>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content if loop.last else m.content.split('|')[-1] }}{% endgeneration %}"
    "{% else %}{{ m.content }}{% endif %}{{ '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)


def tokenizer_of(template: str, **kwargs: bool) -> Any:
    tokenizer = train_tokenizer(**kwargs)
    tokenizer.chat_template = template
    return tokenizer


def chat(*contents: str, system: str | None = None) -> dict[str, Any]:
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    first = [] if system is None else [{"role": "system", "content": system}]
    return {"messages": first + messages}


def learnt(example: dict[str, Any], tokenizer: Any, responses: str) -> str:
    """The text of the tokens that are learnt."""
    _, labels = stitch_turns_decoder_only(
        example["turns"], "none", responses, tokenizer.eos_token_id
    )
    return tokenizer.decode([each for each in labels if each != -100])


def test_b65_a_template_prints_the_only_bos() -> None:
    tokenizer = tokenizer_of(LLAMA, bos=True)
    example = tokenize_formatted_example(chat("the cat", "sat", "the dog", "log"), tokenizer)
    ids, _ = stitch_turns_decoder_only(example["turns"], "none", "all", tokenizer.eos_token_id)
    whole = "<s>[INST] the cat [/INST] sat</s>[INST] the dog [/INST] log</s>"
    assert tokenizer.decode(ids) == whole
    assert ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id
    assert learnt(example, tokenizer, "all") == " sat</s> log</s>"
    assert learnt(example, tokenizer, "last") == " log</s>"


def test_b64_an_answer_ends_with_one_eos_and_nothing_behind_it_is_learnt() -> None:
    tokenizer = tokenizer_of(CHATML)
    row = chat("the cat", "sat", "the dog", "log", system="best")
    assert slice_chat_formatted_example(row, tokenizer) == [
        ("<s>system\nbest</s>\n<s>user\nthe cat</s>\n<s>assistant\n", "sat</s>"),
        ("\n<s>user\nthe dog</s>\n<s>assistant\n", "log</s>"),
    ]
    example = tokenize_formatted_example(row, tokenizer)
    assert learnt(example, tokenizer, "all") == "sat</s>log</s>"


def test_an_end_token_in_the_middle_of_an_answer_stays_there() -> None:
    row = chat("a", "b</s>c")
    assert slice_chat_formatted_example(row, tokenizer_of(CHATML))[0][1] == "b</s>c</s>"


def test_b71_system_before_assistant_is_the_templates_business() -> None:
    row = {
        "messages": [
            {"role": "system", "content": "best"},
            {"role": "assistant", "content": "times"},
        ]
    }
    assert slice_chat_formatted_example(row, tokenizer_of(CHATML))[0][1] == "times</s>"
    with pytest.raises(ChatTemplateError, match="no system message"):
        slice_chat_formatted_example(row, tokenizer_of(LLAMA))


def test_b60_b69_markers_decide_where_prompts_are_no_prefix() -> None:
    row = chat("a", "think|b", "c", "think|d")
    marked = tokenizer_of(FORGETFUL)
    assert slice_chat_formatted_example(row, marked) == [
        ("<s>user\na</s>\n<s>assistant\n", "b</s>"),
        ("\n<s>user\nc</s>\n<s>assistant\n", "think|d</s>"),
    ]
    bare = FORGETFUL.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    with pytest.raises(InvalidConversationError, match="generation"):
        slice_chat_formatted_example(row, tokenizer_of(bare))
    # A conversation that the template leaves as it is needs no markers.
    assert len(slice_chat_formatted_example(chat("a", "b", "c", "d"), tokenizer_of(bare))) == 2


def test_b69_too_few_markers_are_refused() -> None:
    once = FORGETFUL.replace(
        "{% generation %}", "{% if loop.last %}{% generation %}x{% endgeneration %}{% endif %}"
    ).replace("{% endgeneration %}{% else %}", "{% else %}")
    with pytest.raises(InvalidConversationError):
        slice_chat_formatted_example(chat("a", "think|b", "c", "d"), tokenizer_of(once))


def test_markers_decide_where_the_assistant_begins() -> None:
    row = chat("a", "b", "c", "d")
    del row["messages"][0]
    assert slice_chat_formatted_example(row, tokenizer_of(FORGETFUL)) == [
        ("<s>assistant\n", "b</s>"),
        ("\n<s>user\nc</s>\n<s>assistant\n", "d</s>"),
    ]
    with pytest.raises(ChatTemplateError, match="begins with the assistant"):
        slice_chat_formatted_example(row, tokenizer_of(CHATML))


def test_a_template_that_leaves_answers_out_is_refused() -> None:
    template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(InvalidConversationError):
        slice_chat_formatted_example(chat("a", "b"), tokenizer_of(template))


@pytest.mark.parametrize("kind", ["bytes", "first", "always", "prepend"])
@pytest.mark.parametrize("template", [CHATML, LLAMA, ZEPHYR])
def test_turns_are_the_conversation_whole(template: str, kind: str) -> None:
    tokenizer = tokenizer_of(template) if kind == "bytes" else train_with_spaces(kind)
    tokenizer.chat_template = template
    words = ["the cat", "sat on", "times", "w x", "naive\n\nlines ", " the", "\n\nno", "the\n"]
    for seed in range(20):
        rng = random.Random(seed)
        row = chat(*(rng.choice(words) for _ in range(2 * rng.randint(1, 4))))
        turns = tokenize_formatted_example(row, tokenizer)["turns"]
        ids, _ = stitch_turns_decoder_only(turns, "all", "all", tokenizer.eos_token_id)
        text = tokenizer.apply_chat_template(row["messages"], tokenize=False).rstrip("\n")
        assert ids == tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.slow
def test_smollm2_learns_its_answers_and_where_they_end() -> None:
    from transformers import AutoTokenizer

    if not SMOLLM2.is_dir():
        pytest.skip("data/smollm2 is not there: python scripts/misc/fetch_smollm2.py makes it")
    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2)
    row = chat("What is 12 + 7?", "19.", "And the capital of Peru?", " Lima.\n\nIt is large.\n")
    example = tokenize_formatted_example(row, tokenizer)
    answers = "19.<|im_end|> Lima.\n\nIt is large.\n<|im_end|>"
    assert learnt(example, tokenizer, "all") == answers
    ids, _ = stitch_turns_decoder_only(example["turns"], "none", "all", tokenizer.eos_token_id)
    shown = tokenizer.apply_chat_template(row["messages"], return_dict=True)["input_ids"]
    assert ids == shown[:-1] and tokenizer.decode(shown[-1:]) == "\n"
    prompt = tokenizer.apply_chat_template(
        row["messages"][:1], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    assert example["turns"][0]["input_ids"] == prompt  # what generation is given
