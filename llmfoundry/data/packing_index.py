"""The index of packed rows: which pieces of which samples each holds, planned ahead and kept."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from llmfoundry.data.packing_plan import best_fit

__all__ = ["Packing", "PackingIndex", "PackingReport", "windows"]

LongRows = Literal["split", "cut"]

_VERSION = 2
_HASH_WORDS = 2
WINDOW = 4096


@dataclass(frozen=True)
class Packing:
    """How samples are packed into rows.

    Args:
        max_seq_len: Tokens of a packed row.
        padding_id: The token that fills it up.
        long_rows: What becomes of a sample that is longer: ``split`` makes full rows and a
            remainder of it, for documents; ``cut`` keeps its beginning, for prompts and answers.
        window: At least so many samples are packed together, of whole shards one after the other;
            shards that hold twice as many or more are packed in stretches of so many.
        reader: What else the lengths of samples depend on, such as a tokenizer.
    """

    max_seq_len: int
    padding_id: int
    long_rows: LongRows
    window: int = WINDOW
    reader: str = ""

    def __post_init__(self) -> None:
        for name, least in {"max_seq_len": 1, "padding_id": 0, "window": 1}.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}.")
        if self.long_rows not in ("split", "cut"):
            raise ValueError(f"long_rows={self.long_rows!r} must be split or cut.")

    def key(self) -> str:
        """Sixteen hex digits that change with everything that the rows depend on but the data."""
        facts = (self.max_seq_len, self.long_rows, self.window, self.reader, _VERSION)
        return hashlib.blake2b(repr(facts).encode(), digest_size=8).hexdigest()


@dataclass
class PackingReport:
    """What became of samples and tokens."""

    max_seq_len: int = 0
    samples: int = 0
    empty: int = 0
    """Samples without a token; they are in no row."""
    long: int = 0
    """Samples longer than a row."""
    tokens: int = 0
    tokens_cut: int = 0
    rows: int = 0

    @property
    def padding(self) -> float:
        """Share of the packed rows that is padding."""
        return 1 - (self.tokens - self.tokens_cut) / max(1, self.rows * self.max_seq_len)

    def __add__(self, other: "PackingReport") -> "PackingReport":
        both = zip(astuple(self)[1:], astuple(other)[1:], strict=True)
        return PackingReport(other.max_seq_len, *(one + two for one, two in both))

    def __str__(self) -> str:
        text = (
            f"{self.samples:,} samples packed into {self.rows:,} rows of {self.max_seq_len:,} "
            f"tokens, {self.padding:.2%} padding"
        )
        if self.empty:
            text += f"; {self.empty:,} samples are empty and left out"
        if self.tokens_cut:
            text += f"; {self.long:,} longer than a row are cut, by {self.tokens_cut:,} tokens"
        elif self.long:
            text += f"; {self.long:,} longer than a row are split"
        return text


class PackingIndex:
    """Pieces of samples by packed row.

    All rows of a window of shards are counted to its first shard, so that an order that goes
    through shards, and a cache that holds few of them, go through windows instead.

    Args:
        cells: The whole index in one array, which may be a file's memory.
        source: That file and the content it must be of, for other processes to open it again.
    """

    def __init__(self, cells: NDArray[np.int64], source: tuple[str, bytes] | None = None) -> None:
        self._cells, self._source = cells, source
        start = 1 + 2 * _HASH_WORDS
        head = cells[start : start + _HEAD].tolist()
        self.report = PackingReport(*head[:-2])
        shards, pieces = head[-2:]
        start += _HEAD
        sizes = [shards, self.report.rows, self.report.samples]
        parts = np.split(cells[start:], np.cumsum(sizes))
        self.rows_per_shard, self._ends, self.lengths, flat = parts
        self._pieces = flat.reshape(pieces, 3)

    @classmethod
    def build(
        cls, lengths: Sequence[NDArray[np.int64]], packing: Packing, content: bytes
    ) -> "PackingIndex":
        """Plans the rows.

        Args:
            lengths: Tokens of each sample, by shard.
            packing: How.
            content: Sixteen bytes that stand for the data.
        """
        samples = np.concatenate([np.empty(0, np.int64), *lengths]).astype(np.int64)
        rows_per_shard = np.zeros(len(lengths), np.int64)
        counts: list[int] = []
        pieces: list[NDArray[np.int64]] = [np.empty((0, 3), np.int64)]
        first = 0
        for shards in windows([len(each) for each in lengths], packing.window):
            end = first + sum(len(lengths[shard]) for shard in shards)
            for start, stop in _stretches(first, end, packing.window):
                found = _pieces_of(samples[start:stop], packing)
                rows = best_fit(found[:, 2], packing.max_seq_len)
                rows_per_shard[shards[0]] += len(rows)
                counts += map(len, rows)
                order = np.fromiter((piece for row in rows for piece in row), np.int64, len(found))
                pieces.append(found[order] + (start, 0, 0))
            first = end
        flat = np.concatenate(pieces)
        report = PackingReport(
            packing.max_seq_len,
            samples=len(samples),
            empty=int((samples == 0).sum()),
            long=int((samples > packing.max_seq_len).sum()),
            tokens=int(samples.sum()),
            tokens_cut=int(samples.sum() - flat[:, 2].sum()),
            rows=len(counts),
        )
        ends = np.cumsum(counts, dtype=np.int64)
        head = [_VERSION, *_words(content), *[0] * _HASH_WORDS]
        head += [*astuple(report), len(lengths), len(flat)]
        parts = [np.array(head, np.int64), rows_per_shard, ends, samples, flat.ravel()]
        cells = np.concatenate(parts)
        start = 1 + _HASH_WORDS
        digest = hashlib.blake2b(cells[start:].data, digest_size=8 * _HASH_WORDS).digest()
        cells[start : start + _HASH_WORDS] = _words(digest)
        return cls(cells)

    @classmethod
    def load(cls, path: str, content: bytes) -> "PackingIndex | None":
        """The index in a file, left there until it is looked at; None if it is of other data."""
        try:
            cells = np.load(path, mmap_mode="r", allow_pickle=False)
        except (FileNotFoundError, ValueError, EOFError):
            return None
        expected = [_VERSION, *_words(content).tolist()]
        if cells.dtype != np.int64 or cells[: len(expected)].tolist() != expected:
            return None
        return cls(cells, (path, content))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._source is None:
            return PackingIndex, (self._cells,)
        return _load_again, (*self._source, self.digest)

    def save(self, out: BinaryIO) -> None:
        """Writes it as a ``.npy`` file."""
        np.save(out, self._cells, allow_pickle=False)

    @property
    def digest(self) -> str:
        """Hex digits that stand for the plan: two plans with the same have the same rows."""
        start = 1 + _HASH_WORDS
        return self._cells[start : start + _HASH_WORDS].tobytes().hex()

    def pieces(self, row: int) -> list[list[int]]:
        """Sample, first token and number of tokens of each piece of a row."""
        start = self._ends[row - 1] if row else 0
        return self._pieces[start : self._ends[row]].tolist()


_HEAD = len(fields(PackingReport)) + 2


def _load_again(path: str, content: bytes, digest: str) -> PackingIndex:
    index = PackingIndex.load(path, content)
    if index is None or index.digest != digest:
        raise ValueError(f"{path} was changed while a loader worker started. Start again.")
    return index


def _words(content: bytes) -> NDArray[np.int64]:
    return np.frombuffer(content, "<i8", _HASH_WORDS)


def windows(samples_per_shard: Sequence[int], window: int) -> Iterator[list[int]]:
    """Consecutive shards that are packed together: each of at least ``window`` samples."""
    shards: list[int] = []
    count = 0
    for shard, size in enumerate(samples_per_shard):
        shards.append(shard)
        count += size
        if count >= window:
            yield shards
            shards, count = [], 0
    if shards:
        yield shards


def _stretches(first: int, end: int, window: int) -> Iterator[tuple[int, int]]:
    """Cuts a window with samples for several; a short rest goes to the last."""
    while end - first >= 2 * window:
        yield first, first + window
        first += window
    yield first, end


def _pieces_of(sizes: NDArray[np.int64], packing: Packing) -> NDArray[np.int64]:
    """Sample, first token and number of tokens of every piece, in order."""
    limit = packing.max_seq_len
    if packing.long_rows == "cut":
        counts = (sizes > 0).astype(np.int64)
    else:
        counts = -(-sizes // limit)
    sample = np.repeat(np.arange(len(sizes)), counts)
    number = np.arange(len(sample)) - np.repeat(counts.cumsum() - counts, counts)
    start = number * limit
    return np.stack([sample, start, np.minimum(sizes[sample] - start, limit)], axis=1)
