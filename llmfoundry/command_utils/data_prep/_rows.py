"""Texts into shards, as they are or as token rows, with a report of what became of them."""

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from llmfoundry.command_utils.data_prep._loading import load_tokenizer
from llmfoundry.command_utils.data_prep._tokenizing import (
    TokenIds,
    Tokenizing,
    tokenize_in_order,
)
from llmfoundry.command_utils.data_prep._writing import (
    REPORT_FILENAME,
    check_output_folder,
    finished_folder,
    is_whole,
    written_by,
)
from llmfoundry.data.best_fit_packing import BestFitPacker, find_padding
from llmfoundry.data.concatenation import (
    ConcatReport,
    RowMaker,
    TokenConcatenator,
    find_separators,
)
from llmfoundry.utils.exceptions import DatasetTooSmallError, OutputFolderNotEmptyError
from streaming.base.format.mds.writer import MDSWriter
from streaming.base.format.tokens import TokensWriter
from streaming.base.format.writer import Writer

__all__ = ["Concatenation", "Output", "concatenation", "unwritten", "write_dataset"]

PACKINGS = ("concat", "best_fit")
FORMATS = ("mds", "tokens")
Documents = Iterable[Iterable[str]]


@dataclass(frozen=True)
class Output:
    """Where a data set goes, and as what."""

    folder: str
    """A folder, or its address in a store."""
    compression: str | None
    """Compression of the shards, such as ``zstd``."""
    arguments: dict[str, Any]
    """What the data set is made of; two calls in which this is equal write the same."""
    format: str = FORMATS[0]
    """``mds`` shards, or ``tokens``: flat files of token ids."""
    replaces: bool = False
    """It takes the place of what the same call wrote."""

    def check(self, how: "Concatenation | None") -> None:
        """Refuses a format that is not or cannot hold the rows.

        Raises:
            ValueError: It is so.
        """
        if self.format not in FORMATS:
            raise ValueError(f"format={self.format!r} is none of {', '.join(FORMATS)}.")
        if self.format == "tokens" and (how is None or how.packing != PACKINGS[0]):
            raise ValueError(
                "format=tokens holds tokens and nothing else. Give concat_tokens and a tokenizer, "
                "with packing=concat, or use format=mds."
            )

    def writer(self, folder: Path, columns: dict[str, str], how: "Concatenation | None") -> Writer:
        """What writes the rows into a folder."""
        if self.format == FORMATS[0] or how is None:
            return MDSWriter(columns=columns, out=str(folder), compression=self.compression)
        dtype = "uint16" if len(how.tokenizing.tokenizer) <= 1 << 16 else "uint32"
        return TokensWriter(out=str(folder), dtype=dtype, compression=self.compression)


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


def concatenation(
    concat_tokens: int | None,
    tokenizer: str | None,
    tokenizer_kwargs: dict[str, Any] | None,
    bos_text: str | None,
    eos_text: str | None,
    no_wrap: bool,
    processes: int | None,
    packing: str,
) -> Concatenation | None:
    """How to make rows of tokens, or None if texts are to be written as they are.

    ``processes`` is at least 1; None takes the CPUs that this process may use.

    Raises:
        ValueError: Settings of concatenation are given but it is not, or it lacks the tokenizer.
    """
    if concat_tokens is None:
        idle = {"bos_text": bos_text, "eos_text": eos_text, "no_wrap": no_wrap}
        idle["packing"] = packing != PACKINGS[0]
        given = [name for name, value in idle.items() if value]
        if given:
            raise ValueError(
                f"{' and '.join(given)} has no effect without concat_tokens. Give it (tokens of a "
                "row) with a tokenizer, or leave them out."
            )
        return None
    if tokenizer is None:
        raise ValueError(
            "When setting concat_tokens, you must specify a tokenizer (a folder or a hub name)."
        )
    how = Concatenation(
        concat_tokens,
        Tokenizing(load_tokenizer(tokenizer, tokenizer_kwargs)),
        bos_text or "",
        eos_text or "",
        no_wrap,
        len(os.sched_getaffinity(0)) if processes is None else max(1, processes),
        packing,
    )
    how.row_maker()  # Refuses what cannot be before anything is written.
    return how


@dataclass
class TextReport:
    """What became of texts that are written as they are."""

    documents: int = 0
    empty_documents: int = 0
    characters: int = 0

    def lines(self) -> list[str]:
        """The report as lines of text."""
        return [
            f"documents written: {self.documents:,} ({self.empty_documents:,} empty)",
            f"characters: {self.characters:,}",
        ]

    def as_dict(self) -> dict[str, int]:
        """The report as plain numbers."""
        return asdict(self)


def unwritten(outputs: list[Output]) -> list[Output]:
    """What is still to be written, after the same call was killed or at first.

    Raises:
        OutputFolderNotEmptyError: A folder holds something else, or all are there.
    """
    missing = [
        output
        for output in outputs
        if not (is_whole(output.folder) and written_by(output.folder) == output.arguments)
    ]
    for output in missing:
        check_output_folder(output.folder, output.arguments)
    if outputs and not missing:
        raise OutputFolderNotEmptyError(outputs[0].folder)
    for output in outputs:
        if output not in missing:
            print(f"{output.folder} is there already, from the same call.")
    return missing


def write_dataset(
    output: Output,
    documents: Documents,
    how: Concatenation | None,
    source: str,
    limit: int | None = None,
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Writes documents as shards, prints what became of them and writes it beside the shards.

    Args:
        output: Where to, and as what.
        documents: Each document as its pieces, in order.
        how: How to make token rows; None writes the texts as they are.
        source: Where the documents are from, for what is printed.
        limit: Rows at most.
        finish: Called with the folder before it takes its place.

    Raises:
        DatasetTooSmallError: There is not one row.
        OutputFolderNotEmptyError: The folder holds something else.
    """
    output.check(how)
    start = time.perf_counter()
    with finished_folder(output.folder, output.arguments, output.replaces) as folder:
        columns, rows, report = _rows_of(documents, how)
        count = 0
        with output.writer(folder, columns, how) as writer:
            for row in islice(rows, limit):
                count += 1
                writer.write(row)
        if not count:
            size = "" if how is None else f" of {how.tokens} tokens"
            raise DatasetTooSmallError(
                f"The texts of {source} are too few to fill one row{size} "
                f"({'; '.join(report.lines())}). Add text, or lower concat_tokens."
            )
        lines, seconds = report.lines(), round(time.perf_counter() - start, 3)
        numbers: dict[str, Any] = {**report.as_dict(), "seconds": seconds}
        if "tokens" in numbers:
            numbers["tokens_per_second"] = rate = int(numbers["tokens"] / max(seconds, 1e-3))
            lines.append(f"seconds: {seconds:,.1f} ({rate:,} tokens a second)")
        numbers["arguments"] = output.arguments
        text = json.dumps(numbers, indent=2) + "\n"
        (folder / REPORT_FILENAME).write_text(text, encoding="utf-8")
        if finish is not None:
            finish(folder)
    print("\n  ".join([f"Wrote {output.folder} from {source}:", *lines]))


def _rows_of(
    documents: Documents, how: Concatenation | None
) -> tuple[dict[str, str], Iterator[dict[str, Any]], ConcatReport | TextReport]:
    """The columns, the rows, and what will have become of the documents once these are written."""
    if how is not None:
        maker = how.row_maker()
        return maker.columns, maker.samples(_tokenized(documents, how)), maker.report
    report = TextReport()

    def rows() -> Iterator[dict[str, Any]]:
        for document in documents:
            text = "".join(document)
            report.documents += 1
            report.characters += len(text)
            report.empty_documents += not text
            yield {"text": text}

    return {"text": "str"}, rows(), report


def _tokenized(documents: Documents, how: Concatenation) -> Iterator[Iterator[TokenIds]]:
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
