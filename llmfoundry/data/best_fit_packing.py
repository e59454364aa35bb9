"""Documents in, padded token rows out in which no document is cut that fits into a row."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from llmfoundry.data.concatenation import ConcatReport, RowMaker, Separators, TokenIds
from llmfoundry.data.packing_plan import best_fit

__all__ = ["LENGTHS_COLUMN", "BestFitPacker", "PackingReport", "find_padding"]

LENGTHS_COLUMN = "document_lengths"
"""Column with the lengths of a row's documents; what is behind them is padding."""

WINDOW = 4096
"""Documents that are packed together, of each what is less than a row. Log-normal lengths are then
padded by 0.05 to 0.15 %; twice as many documents would save a third of that."""


@dataclass
class PackingReport(ConcatReport):
    """What became of the documents and their tokens, and what padding was added."""

    documents_cut: int = 0
    """Documents that are longer than a row."""
    tokens_padding: int = 0

    def lines(self) -> list[str]:
        """The report as lines of text."""
        padded = self.tokens_padding / max(1, self.tokens_in_samples + self.tokens_padding)
        rows = [
            f"documents: {self.documents:,} ({self.empty_documents:,} empty)",
            f"cut, since longer than a sample: {self.documents_cut:,} documents",
            f"tokens: {self.tokens:,}",
            f"samples written: {self.samples:,} ({self.tokens_in_samples:,} tokens)",
            f"padding: {self.tokens_padding:,} tokens ({padded:.2%} of the samples)",
        ]
        if self.tokens_left_over:  # a limit of samples was reached
            rows.append(f"left over behind the last sample: {self.tokens_left_over:,} tokens")
        if self.separators_present:
            rows.append(f"separators already in the text, not doubled: {self.separators_present:,}")
        return rows


class BestFitPacker(RowMaker):
    """Packs documents into rows by best fit, after Ding et al., arXiv 2404.10830.

    A document longer than a row is cut into full rows and a remainder. Remainders and whole
    documents then share rows, none of them cut, and rows are padded at their end. A sample says how
    long its documents are, by which a reader knows the padding, whatever token it is, and can keep
    documents from seeing each other.

    Args:
        length: Tokens of a row.
        separators: What stands around each document.
        padding_id: The token that pads rows.
        window: Documents that are packed together.
    """

    columns: ClassVar[dict[str, str]] = {**RowMaker.columns, LENGTHS_COLUMN: "ndarray:int32"}

    def __init__(
        self, length: int, separators: Separators, padding_id: int, window: int = WINDOW
    ) -> None:
        super().__init__(length, separators)
        self.padding_id = padding_id
        self.window = window
        self.report = self._report = PackingReport()

    def samples(self, documents: Iterable[Iterable[TokenIds]]) -> Iterator[dict[str, Any]]:
        """Yields the rows that the documents make, with the lengths of the documents in each."""
        waiting: list[NDArray[Any]] = []
        for pieces in documents:
            full = 0
            for row in self._document(pieces):
                full += 1
                yield self._sample([row])
            self._report.documents_cut += (full + bool(self._held)) > 1
            if self._held:
                waiting.append(self._take_out())
            if len(waiting) == self.window:
                yield from self._packed(waiting)
                waiting = []
        yield from self._packed(waiting)

    def _packed(self, pieces: list[NDArray[Any]]) -> Iterator[dict[str, Any]]:
        for row in best_fit([len(piece) for piece in pieces], self.length):
            sample = self._sample([pieces[index] for index in row])
            self._report.samples += 1
            self._report.tokens_in_samples += int(sample[LENGTHS_COLUMN].sum())
            yield sample

    def _sample(self, pieces: list[NDArray[Any]]) -> dict[str, Any]:
        lengths = np.array([len(piece) for piece in pieces], dtype=np.int32)
        padding = self.length - int(lengths.sum())
        self._report.tokens_padding += padding
        tokens = np.concatenate([*pieces, np.full(padding, self.padding_id, dtype=np.int32)])
        return {"tokens": tokens, LENGTHS_COLUMN: lengths}


def find_padding(tokenizer: Any) -> int:
    """The token to pad rows with: the tokenizer's padding token, else its end token.

    Raises:
        ValueError: It has neither.
    """
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return token
    raise ValueError(
        f"packing=best_fit pads rows, but tokenizer {tokenizer.name_or_path!r} has neither a "
        "padding nor an end token (pad_token=None, eos_token=None). Set one of them in its "
        "tokenizer_config.json, or use packing=concat."
    )
