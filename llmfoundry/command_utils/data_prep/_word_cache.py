"""Token ids of words, remembered: what byte-level BPE does to a word does not hang on the rest."""

import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["WordCache", "cuts_are_safe"]

MEMORY = 100_000_000
"""Bytes that the words which are kept take at most, about; then the cache starts anew."""
MOST_IDS = 16
"""Of a piece that is kept; longer ones seldom come again."""
FEW_SPACES = 20
"""Characters a space, on average, from which on a text has too few words to gain by this."""

# A piece begins where every pattern below begins a match, whatever stands before: at a space behind
# no space, at a mark or a newline behind a letter, at what is no space behind a lone newline. And
# it ends where no pattern looks further. Runs of white space are never cut, since patterns look at
# what follows them; nor is a newline from a slash, which GPT-4o's takes along.
PIECE = re.compile(
    r" ?[A-Za-z]+(?=[ .,;:!?\n])|\n(?=[A-Za-z])"
    r"|\s*\S+(?:(?!\n[^\s/])[^\S ]\s*\S*)*(?:\n(?=[^\s/]))?|\s+"
)
LINES = re.compile(r"(?s:.{2000,}?)\S\n(?=[^\s/])|(?s:.+)")
UNSAFE_TOKEN = re.compile(r"\S\s|\s\S|[A-Za-z][.,;:!?]")

_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = (_GPT4.replace("DIGITS", ""), _GPT4.replace("DIGITS", "{1,3}"), _GPT4O)
"""Besides GPT-2's: those of Qwen, of Llama 3 and GPT-4, and of GPT-4o."""


def cuts_are_safe(backend: Any) -> bool:
    """Tells whether a tokenizer of the tokenizers library turns pieces into what it does to texts.

    It does if it is BPE behind a pattern that is known here, and none of its added tokens can
    stand across a cut.
    """
    settings: dict[str, Any] = json.loads(backend.to_str())
    model, normalizer = settings["model"], settings["normalizer"] or {"type": "NFC"}
    split: dict[str, Any] = settings["pre_tokenizer"] or {"type": None}
    steps = split["pretokenizers"] if split["type"] == "Sequence" else [split]
    return (
        model["type"] == "BPE"
        and not model["dropout"]
        and normalizer["type"] == "NFC"
        and steps[-1]["type"] == "ByteLevel"
        and not steps[-1]["add_prefix_space"]
        and all(map(_is_known, steps[:-1]))
        and any(step["type"] == "Split" or step.get("use_regex") for step in steps)
        and not any(
            token["lstrip"]
            or token["rstrip"]
            or token["single_word"]
            or UNSAFE_TOKEN.search(token["content"])
            for token in settings["added_tokens"]
        )
    )


def _is_known(step: dict[str, Any]) -> bool:
    if step["type"] == "Split":
        is_plain = step["behavior"] == "Isolated" and not step["invert"]
        return is_plain and step["pattern"].get("Regex") in PATTERNS
    return step["type"] == "Digits"


class WordCache(dict[str, bytes]):
    """Token ids, as the bytes of int32, by piece of text: faster than the tokenizer that fills it.

    Args:
        backend: A tokenizer of the tokenizers library, of which :func:`cuts_are_safe`.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._room = MEMORY

    def __missing__(self, piece: str) -> bytes:
        ids = np.array(
            self._backend.encode(piece, add_special_tokens=False).ids, np.int32
        ).tobytes()
        if len(ids) <= 4 * MOST_IDS:
            # The table's entry and two headers; characters are wide at most.
            self._room -= 250 + 4 * len(piece) + len(ids)
            if self._room < 0:
                self.clear()
                self._room = MEMORY
            self[piece] = ids
        return ids

    def ids(self, text: str) -> NDArray[np.int32]:
        """The token ids of a text, without special tokens."""
        if len(text) > FEW_SPACES * (100 + text.count(" ")):
            return np.fromiter(chain.from_iterable(self._ids_of_lines(text)), np.int32)
        return np.frombuffer(b"".join(map(self.__getitem__, PIECE.findall(text))), np.int32)

    def _ids_of_lines(self, text: str) -> Iterator[list[int]]:
        # A few at a time, for what the library makes of a character takes a hundred times its size.
        lines = LINES.findall(text)
        for start in range(0, len(lines), 100):
            some = lines[start : start + 100]
            for encoding in self._backend.encode_batch_fast(some, add_special_tokens=False):
                yield encoding.ids
