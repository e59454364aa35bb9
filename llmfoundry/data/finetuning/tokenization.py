"""Fine-tuning rows into turns of token ids, each special token where inference will have it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmfoundry.data.concatenation import own_specials
from llmfoundry.data.finetuning.chat import slice_chat_formatted_example
from llmfoundry.data.finetuning.examples import (
    Example,
    get_example_type,
    get_prompt_and_response,
)

__all__ = ["RowTexts", "RowTokenizer", "get_texts", "tokenize_formatted_example"]

Turn = dict[str, list[int]]


@dataclass(frozen=True)
class RowTexts:
    """A row as texts: its prompts and answers, and whether a template wrote its special tokens."""

    pairs: list[tuple[str, str]]
    has_specials: bool


def get_texts(example: Example, tokenizer: Any, date_string: str | None = None) -> RowTexts:
    """The prompts and answers of a row; an answer of nothing but white space is empty.

    Args:
        example: The row.
        tokenizer: The tokenizer, whose template writes a chat.
        date_string: What the template writes as today, such as ``26 Jul 2025``; today by default.

    Raises:
        UserError: The row is neither a prompt and response nor a chat, or is a faulty one.
    """
    if get_example_type(example) == "prompt_response":
        prompt, response = get_prompt_and_response(example)
        return RowTexts([(prompt, response if response.strip() else "")], has_specials=False)
    slices = slice_chat_formatted_example(example, tokenizer, date_string)
    contents = [each["content"] for each in example["messages"] if each["role"] == "assistant"]
    pairs = [
        (prompt, "" if isinstance(content, str) and not content.strip() else answer)
        for (prompt, answer), content in zip(slices, contents, strict=True)
    ]
    return RowTexts(pairs, has_specials=True)


class RowTokenizer:
    """Tokenises many rows in one call of the tokenizer.

    A prompt begins with what the tokenizer itself puts before a text, once, and is not ended: the
    answer goes on from it. An answer never begins with the start token, and ends as the tokenizer
    ends a text. Chats have the special tokens of their template and no others, as in inference.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.before, self.after = (list(each) for each in own_specials(tokenizer))
        self._added = tuple(sorted(tokenizer.get_added_vocab(), key=len, reverse=True))

    def __call__(self, rows: Sequence[RowTexts]) -> list[list[Turn]]:
        """The turns of each row: ``{"input_ids": prompt, "labels": answer}``."""
        texts: list[str] = []
        anchors: list[str] = []
        for row in rows:
            anchor = ""
            for text in (text for pair in row.pairs for text in pair):
                texts.append(text)
                anchors.append(anchor)
                if row.has_specials and text:
                    anchor = self._end(text)
        ids = iter(self._ids_behind(anchors, texts))
        return [
            [self._turn(next(ids), next(ids), row.has_specials) for _ in row.pairs] for row in rows
        ]

    def _end(self, text: str) -> str:
        """The last special token, if but white space follows it, with that; or the last letter."""
        bare = text.rstrip()
        if not bare.endswith(self._added):
            return text[-1:]
        return next(each for each in self._added if bare.endswith(each)) + text[len(bare) :]

    def _ids_behind(self, anchors: list[str], texts: list[str]) -> list[list[int]]:
        """The ids of each text as it goes on from its anchor, what stands before it in its chat.

        Tokenised alone, it would begin like a text does: with SentencePiece, with a space.
        """
        ids = self._ids([anchor + text for anchor, text in zip(anchors, texts, strict=True)])
        kinds = list({*anchors, self.tokenizer.eos_token or ""})
        heads = dict(zip(kinds, self._ids(kinds), strict=True)) | {"": []}
        # Where a token joins an anchor's end and a text's beginning, a special token is the anchor.
        joined = [
            place
            for place, anchor in enumerate(anchors)
            if ids[place][: len(heads[anchor])] != heads[anchor]
        ]
        anchors = list(anchors)
        for place in joined:
            anchors[place] = self.tokenizer.eos_token or ""
        again = self._ids([anchors[place] + texts[place] for place in joined])
        for place, found in zip(joined, again, strict=True):
            ids[place] = found
        return [each[len(heads[anchor]) :] for each, anchor in zip(ids, anchors, strict=True)]

    def _ids(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        return self.tokenizer(
            texts,
            add_special_tokens=False,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )["input_ids"]

    def _turn(self, prompt: list[int], answer: list[int], has_specials: bool) -> Turn:
        if not has_specials:
            before, after = self.before, self.after
            if prompt[: len(before)] != before:
                prompt = before + prompt
            while answer and answer[0] == self.tokenizer.bos_token_id:
                answer = answer[1:]
            if answer and after and answer[-len(after) :] != after:
                answer = answer + after
        return {"input_ids": prompt, "labels": answer}


def tokenize_formatted_example(example: Example, tokenizer: Any) -> dict[str, list[Turn]]:
    """Tokenises one row: ``{"turns": [{"input_ids": prompt, "labels": answer}, ...]}``.

    Raises:
        UserError: The row is neither a prompt and response nor a chat, or is a faulty one.
    """
    return {"turns": RowTokenizer(tokenizer)([get_texts(example, tokenizer)])[0]}
