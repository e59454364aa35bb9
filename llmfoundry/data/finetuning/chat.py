"""Chats into prompts and answers, by what the tokenizer's own template shows, or not at all."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from llmfoundry.data.finetuning.examples import Example, get_messages
from llmfoundry.tokenizers.dates import dated_template, get_date_string
from llmfoundry.utils.exceptions import ChatTemplateError, InvalidConversationError

__all__ = ["DEFAULT_CHAT_TEMPLATE", "slice_chat_formatted_example"]

DEFAULT_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML, for tokenizers that come without a template."""

GENERATION_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")

Messages = Sequence[Mapping[str, Any]]
Slices = list[tuple[str, str]]


def slice_chat_formatted_example(
    example: Example, tokenizer: Any, date_string: str | None = None
) -> Slices:
    """Cuts a chat into (prompt, answer) pairs of text, one for each message of the assistant.

    A prompt is everything that the template writes between two answers, up to where the assistant
    begins to write. An answer ends with the end token that the template gives it; what the template
    writes behind that token opens the next prompt, and behind the last answer is left out.

    Answers are where a prompt, as generation will see it, is a prefix of the whole; else where the
    template's ``{% generation %}`` markers say.

    Args:
        example: A row with ``messages``.
        tokenizer: The tokenizer, whose template is taken.
        date_string: What the template writes as today, such as ``26 Jul 2025``; today by default.

    Raises:
        UserError: The messages are not a chat that ends with an answer.
        ChatTemplateError: The template refuses the messages, or cannot open with an answer.
        InvalidConversationError: Neither tells which part the assistant wrote.
    """
    messages = get_messages(example)
    date = date_string or get_date_string()
    slices = _by_prefix(messages, tokenizer, date)
    if slices is None:
        slices = _by_markers(messages, tokenizer, date)
    if slices is None and messages[0]["role"] == "assistant":
        reason = (
            "It begins with the assistant, so no prompt shows where that begins to write, and the "
            "template has no {% generation %} markers for every answer. Add them, or begin the "
            "conversation with another message."
        )
        sample = [dict(each) for each in messages]
        raise ChatTemplateError(str(tokenizer.chat_template), sample, reason)
    if slices is None:
        raise InvalidConversationError(
            "The chat template does not tell which tokens the assistant wrote: what it writes for "
            "the messages before an answer, with the generation prompt, is not how the whole "
            "conversation begins (it may shorten or change earlier answers), and it has no "
            "{% generation %} markers for every answer. Mark the answers in the template, or split "
            "the conversation into rows that end with one answer each."
        )
    return _ended_by(tokenizer.eos_token, slices)


def _by_prefix(messages: Messages, tokenizer: Any, date: str) -> Slices | None:
    """The pairs, if each prompt is how the conversation goes on; None if one is not."""
    slices, written = [], ""
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        if not place:  # templates are given at least one message
            return None
        prompt = _render(tokenizer, messages[:place], date, is_prompt=True)
        whole = _render(tokenizer, messages[: place + 1], date)
        if not prompt.startswith(written) or not whole.startswith(prompt) or whole == prompt:
            return None
        slices.append((prompt[len(written) :], whole[len(prompt) :]))
        written = whole
    return slices


def _by_markers(messages: Messages, tokenizer: Any, date: str) -> Slices | None:
    """The pairs, if the template marks one answer for each message of the assistant."""
    from transformers.utils.chat_template_utils import render_jinja_template

    template = _template(tokenizer, date)
    if not GENERATION_MARKER.search(template):
        return None
    rendered: Any = render_jinja_template(
        [[dict(message) for message in messages]],
        chat_template=template,
        return_assistant_tokens_mask=True,
        date_string=date,
        **tokenizer.special_tokens_map,
    )
    (text,), (spans,) = rendered
    answers = sum(message["role"] == "assistant" for message in messages)
    if len(spans) != answers or text != _render(tokenizer, messages, date):
        return None
    slices, written = [], 0
    for start, end in spans:
        # The token that ends an answer may stand behind the marker.
        if tokenizer.eos_token and text.startswith(tokenizer.eos_token, end):
            end += len(tokenizer.eos_token)
        slices.append((text[written:start], text[start:end]))
        written = end
    return slices


def _template(tokenizer: Any, date: str) -> str:
    own = tokenizer.get_chat_template() if tokenizer.chat_template else DEFAULT_CHAT_TEMPLATE
    return dated_template(own, date)


def _render(tokenizer: Any, messages: Messages, date: str, is_prompt: bool = False) -> str:
    try:
        return tokenizer.apply_chat_template(
            list(messages),
            chat_template=_template(tokenizer, date),
            tokenize=False,
            add_generation_prompt=is_prompt,
            date_string=date,
        )
    # What runs in a template raises many kinds.
    except (TemplateError, AttributeError, LookupError, TypeError, ValueError) as error:
        own = str(tokenizer.chat_template)
        raise ChatTemplateError(own, [dict(m) for m in messages], str(error)) from error


def _ended_by(eos_token: str | None, slices: Slices) -> Slices:
    """Moves what stands between an answer's end token and the next prompt into that prompt."""
    ended, carried = [], ""
    for prompt, answer in slices:
        prompt, carried = carried + prompt, ""
        if eos_token and eos_token in answer:
            text, _, tail = answer.rpartition(eos_token)
            if not tail.strip():
                answer, carried = text + eos_token, tail
        ended.append((prompt, answer))
    return ended
