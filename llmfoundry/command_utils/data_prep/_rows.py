"""Texts into MDS shards, as they are or as token rows, with a report of what became of them."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from llmfoundry.command_utils.data_prep._tokenizing import (
    TokenIds,
    Tokenizing,
    tokenize_in_order,
)
from llmfoundry.command_utils.data_prep._writing import write_rows
from llmfoundry.data.best_fit_packing import BestFitPacker, find_padding
from llmfoundry.data.concatenation import RowMaker, TokenConcatenator, find_separators

__all__ = ["PACKINGS", "Concatenation", "print_report", "write_texts", "write_token_rows"]

PACKINGS = ("concat", "best_fit")


@dataclass(frozen=True)
class Concatenation:
    """How texts become rows of tokens."""

    tokens: int
    """Tokens of a row."""
    tokenizing: Tokenizing
    bos_text: str = ""
    eos_text: str = ""
    no_wrap: bool = False
    processes: int = 1
    packing: str = PACKINGS[0]
    """``concat`` joins texts and cuts them into rows; ``best_fit`` fits whole texts into rows."""

    def row_maker(self) -> RowMaker:
        """A fresh maker of rows.

        Raises:
            ValueError: The separators cannot be, or ``packing`` does not go with the rest.
        """
        if self.packing not in PACKINGS:
            raise ValueError(f"packing={self.packing!r} is none of {', '.join(PACKINGS)}.")
        tokenizer = self.tokenizing.tokenizer
        separators = find_separators(tokenizer, self.bos_text, self.eos_text)
        if self.packing == "best_fit":
            if self.no_wrap:
                raise ValueError(
                    "no_wrap has no effect with packing=best_fit, which cuts only what is longer "
                    "than a row and throws nothing away. Leave one of them out."
                )
            return BestFitPacker(self.tokens, separators, find_padding(tokenizer))
        return TokenConcatenator(self.tokens, separators, self.no_wrap)


def write_token_rows(
    folder: Path,
    documents: Iterable[Iterable[str]],
    how: Concatenation,
    compression: str | None,
    limit: int | None = None,
) -> list[str]:
    """Writes documents as rows of tokens and returns the lines of the report.

    Args:
        folder: An empty folder.
        documents: Each document as its pieces, in order.
        how: How to make rows.
        compression: Compression of the shards.
        limit: Rows at most.
    """
    maker = how.row_maker()
    samples = maker.samples(_tokenized(documents, how))
    write_rows(folder, maker.columns, compression, islice(samples, limit))
    return maker.report.lines()


def _tokenized(
    documents: Iterable[Iterable[str]], how: Concatenation
) -> Iterator[Iterator[TokenIds]]:
    """Tokenises pieces in batches across documents, and gives each document its pieces back."""
    is_last: deque[bool] = deque()

    def pieces() -> Iterator[str]:
        for document in documents:
            yield from _noting_the_last(document, is_last)

    stream = tokenize_in_order(pieces(), how.tokenizing, how.processes)

    def document(first: TokenIds) -> Iterator[TokenIds]:
        yield first
        while not is_last.popleft():
            yield next(stream)

    for first in stream:
        yield document(first)


def _noting_the_last(document: Iterable[str], is_last: deque[bool]) -> Iterator[str]:
    """Yields the pieces of a document, at least an empty one, and notes which ends it."""
    before: str | None = None
    for piece in document:
        if before is not None:
            is_last.append(False)
            yield before
        before = piece
    is_last.append(True)
    yield before or ""


def write_texts(
    folder: Path, texts: Iterable[str], compression: str | None, limit: int | None = None
) -> list[str]:
    """Writes texts as they are, one a sample, and returns the lines of the report."""
    counts: dict[str, int] = {"empty": 0, "characters": 0}

    def rows() -> Iterator[dict[str, Any]]:
        for text in islice(texts, limit):
            counts["characters"] += len(text)
            counts["empty"] += not text
            yield {"text": text}

    samples = write_rows(folder, {"text": "str"}, compression, rows())
    return [
        f"documents written: {samples:,} ({counts['empty']:,} empty)",
        f"characters: {counts['characters']:,}",
    ]


def print_report(title: str, lines: list[str]) -> None:
    """Prints what became of the data."""
    print(title)
    for line in lines:
        print(f"  {line}")
