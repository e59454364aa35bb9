"""Documents in, token rows of one length out: separators once each, every token accounted for."""

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ConcatReport",
    "RowMaker",
    "Separators",
    "TokenConcatenator",
    "TokenIds",
    "find_separators",
    "own_specials",
]

TokenIds = Sequence[int] | NDArray[Any]
"""The ids of a text's tokens; an array is taken as it is, without a look at each."""


@dataclass
class ConcatReport:
    """What became of the documents and their tokens."""

    documents: int = 0
    empty_documents: int = 0
    tokens: int = 0
    """Tokens of all documents, separators included."""
    samples: int = 0
    tokens_in_samples: int = 0
    tokens_cut: int = 0
    """Tokens behind the first full sample of a buffer, which no_wrap throws away."""
    separators_present: int = 0
    """Separators that a document brought along itself and that were not added again."""

    @property
    def tokens_left_over(self) -> int:
        """Tokens behind the last sample: less than one, or what a limit of samples left."""
        return self.tokens - self.tokens_in_samples - self.tokens_cut

    def lines(self) -> list[str]:
        """The report as lines of text."""
        rows = [
            f"documents: {self.documents:,} ({self.empty_documents:,} empty)",
            f"tokens: {self.tokens:,}",
            f"samples written: {self.samples:,} ({self.tokens_in_samples:,} tokens)",
            f"left over at the end: {self.tokens_left_over:,} tokens (dropped: behind the last)",
        ]
        if self.tokens_cut:
            rows.append(f"cut by no_wrap: {self.tokens_cut:,} tokens")
        if self.separators_present:
            rows.append(f"separators already in the text, not doubled: {self.separators_present:,}")
        return rows

    def as_dict(self) -> dict[str, int]:
        """The report as plain numbers."""
        return {**dataclasses.asdict(self), "tokens_left_over": self.tokens_left_over}


@dataclass(frozen=True)
class Separators:
    """The token ids that stand before and behind each document."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


def find_separators(tokenizer: Any, bos_text: str, eos_text: str) -> Separators:
    """Decides what separates documents, so that each separator is there exactly once.

    A tokenizer may add beginning and end tokens itself. Where it does and ``bos_text`` or
    ``eos_text`` asks for the same, there is one; where the two differ, nobody can know which is
    wanted.

    Raises:
        ValueError: Nothing would separate the documents, or the tokenizer's own tokens contradict
            ``bos_text`` or ``eos_text``.
    """
    own_before, own_after = own_specials(tokenizer)
    before = _one_of(tokenizer, "bos_text", bos_text, own_before)
    after = _one_of(tokenizer, "eos_text", eos_text, own_after)
    if not before and not after:
        raise ValueError(
            "This tokenizer does not insert an EOS nor BOS token. Concatenating with this "
            "tokenizer will result in sequences being attached without a separating token. Please "
            "give eos_text (such as <|endoftext|>) or bos_text, or use another tokenizer."
        )
    return Separators(before, after)


def own_specials(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer itself puts before and behind a text."""
    plain = tokenizer("test", add_special_tokens=False)["input_ids"]
    full = tokenizer("test")["input_ids"]
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return tuple(full[:start]), tuple(full[start + len(plain) :])
    raise ValueError(
        "The tokenizer changes a text when it adds its special tokens, so documents cannot be "
        "concatenated with it. Please use another tokenizer."
    )


def _one_of(tokenizer: Any, name: str, text: str, own: tuple[int, ...]) -> tuple[int, ...]:
    if not text:
        return own
    asked = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    if len(asked) != 1:
        warnings.warn(
            f"You specified {name} {text!r} which is not one token, but {len(asked)}: "
            f"{list(asked)}. Loaders find document boundaries by a single token.",
            stacklevel=3,
        )
    if own and own != asked:
        raise ValueError(
            f"{name}={text!r} is {list(asked)}, but the tokenizer itself adds {list(own)} there: a "
            f"document would have both. Leave {name} empty, or configure the tokenizer (for "
            "example tokenizer_kwargs add_bos_token: false) to add nothing."
        )
    return asked


class RowMaker(ABC):
    """Puts separators around documents, cuts full rows off them and counts what it does.

    Args:
        length: Tokens of a row.
        separators: What stands around each document.
        no_wrap: Starts a new row with a new document: what a full row leaves of its buffer is
            thrown away.
    """

    columns: ClassVar[dict[str, str]] = {"tokens": "ndarray:int32"}
    """Columns of the shards that hold the samples, and their encodings."""

    def __init__(self, length: int, separators: Separators, no_wrap: bool = False) -> None:
        if length < 1:
            raise ValueError(f"A row needs at least one token, got concat_tokens={length}.")
        self.length = length
        self.separators = separators
        self.no_wrap = no_wrap
        self.report = ConcatReport()
        self._parts: list[NDArray[np.int32]] = []
        self._held = 0

    @abstractmethod
    def samples(self, documents: Iterable[Iterable[TokenIds]]) -> Iterator[dict[str, Any]]:
        """Yields the samples that the documents make.

        Args:
            documents: Each document as its pieces in order, so that a large one need not be in
                memory at once.
        """

    def _document(self, pieces: Iterable[TokenIds]) -> Iterator[NDArray[Any]]:
        before, after = self.separators.before, self.separators.after
        report = self.report
        report.documents += 1
        size = 0
        tail: tuple[int, ...] = ()
        for piece in pieces:
            if not size and len(piece):
                self._open(piece, before)
            size += len(piece)
            self._take(piece)
            if after:
                tail = (tail + _ids(piece[-len(after) :]))[-len(after) :]
            # With no_wrap the end of the document decides what is cut, so it has to be awaited.
            if not self.no_wrap:
                yield from self._full_rows()
        if not size:
            report.empty_documents += 1
            self._take(before)
        if after and size and tail == after:
            report.separators_present += 1
        else:
            self._take(after)
        yield from self._full_rows()

    def _open(self, piece: TokenIds, before: tuple[int, ...]) -> None:
        if before and _ids(piece[: len(before)]) == before:
            self.report.separators_present += 1
        else:
            self._take(before)

    def _take(self, ids: TokenIds) -> None:
        self._parts.append(np.asarray(ids, dtype=np.int32))
        self._held += len(ids)
        self.report.tokens += len(ids)

    def _take_out(self) -> NDArray[np.int32]:
        """Empties the buffer."""
        held = np.concatenate(self._parts) if self._parts else np.empty(0, dtype=np.int32)
        self._parts, self._held = [], 0
        return held

    def _full_rows(self) -> Iterator[NDArray[Any]]:
        if self._held < self.length:
            return
        held = self._take_out()
        rows = 1 if self.no_wrap else len(held) // self.length
        rest = held[rows * self.length :]
        if self.no_wrap:
            self.report.tokens_cut += len(rest)
        else:
            # Copied, for a view would keep all the rows in memory.
            self._parts, self._held = [rest.copy()], len(rest)
        for row in held[: rows * self.length].reshape(rows, self.length):
            self.report.samples += 1
            self.report.tokens_in_samples += self.length
            yield row


def _ids(tokens: TokenIds) -> tuple[int, ...]:
    return tuple(tokens.tolist() if isinstance(tokens, np.ndarray) else tokens)


class TokenConcatenator(RowMaker):
    """Joins documents into rows of ``length`` tokens, wherever a row then ends."""

    def samples(self, documents: Iterable[Iterable[TokenIds]]) -> Iterator[dict[str, Any]]:
        """Yields the rows that the documents fill, as samples."""
        return ({"tokens": row} for row in self.documents(documents))

    def documents(self, documents: Iterable[Iterable[TokenIds]]) -> Iterator[NDArray[Any]]:
        """Yields the rows that the documents fill."""
        for pieces in documents:
            yield from self._document(pieces)
