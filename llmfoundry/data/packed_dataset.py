"""A streaming data set whose samples are packed rows, planned ahead as an index."""

import errno
import hashlib
import logging
import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, BinaryIO, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from llmfoundry.data.packing_index import Packing, PackingIndex, PackingReport, windows
from llmfoundry.utils.consts import CROSS_ENTROPY_IGNORE_INDEX
from streaming.base.dataset import StreamingDataset
from streaming.base.files import make_once
from streaming.base.prefetch import Prefetcher

__all__ = ["PackedDataset", "Row", "token_row", "tokenizer_fingerprint"]

log = logging.getLogger(__name__)

T = TypeVar("T")

Row = Mapping[str, Any]
"""A sample's ``input_ids`` and, if it has any, ``labels`` as long: arrays or lists of integers."""

Place = tuple[int, int]
"""Number of a shard, and of a sample in it."""

_CANNOT_KEEP = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
_LOG_SECONDS = 60.0
_KEPT_TOKENS = 1 << 23
"""Tokens of long samples that a process keeps (4 bytes each, with labels 8), for their next piece.
"""


def token_row(sample: Mapping[str, Any]) -> Row:
    """The row of a sample that holds ``input_ids`` and ``labels``, or ``tokens`` alone.

    Raises:
        ValueError: It holds neither.
    """
    if "input_ids" in sample:
        return {key: sample[key] for key in ("input_ids", "labels") if key in sample}
    if "tokens" in sample:
        return {"input_ids": sample["tokens"]}
    raise ValueError(f"a sample needs input_ids or tokens to be packed, and has {sorted(sample)}.")


class PackedDataset(StreamingDataset):
    """Packs the samples of its streams into rows, by best fit, and gives these rows as samples.

    Every sample is in exactly one row of an epoch, none is left over, and the rows are those of the
    plan whoever loads them: shuffling, mixing, sharding and resuming are of whole rows, with all
    that :class:`streaming.StreamingDataset` promises of samples. ``choose`` and ``epoch_size``
    count rows too.

    The plan needs the length of every sample. It is made once by each node, from one pass over all
    shards (which fetches those that are remote), and kept in a file beside the local shards, until
    data or settings change. States name the plan, and are refused under another one. A node that
    has its plan waits for the others in the next collective, for ``dist_timeout`` seconds.

    A sample is a row of tensors of ``max_seq_len``: ``input_ids``; ``attention_mask``, 0 at the
    padding behind the last document; ``sequence_id``, the number of each token's document, -1 at
    padding; ``position_ids``, which begin anew with each document; and ``labels`` if its samples
    have them, -100 at padding and at the first token of each document but the first.

    Args:
        packing: How samples are packed.
        row_of: Gives the row of a sample, if that is more than its columns; ``packing.reader`` then
            says what it does, and must change with it.
        **kwargs: Every argument of :class:`streaming.StreamingDataset`, or of the class that a
            subclass adds.
    """

    def __init__(
        self,
        *,
        packing: Packing,
        row_of: Callable[[Any], Row] = token_row,
        **kwargs: Any,
    ) -> None:
        self.packing = packing
        self._row_of = row_of
        self._kept: dict[int, Row] = {}
        if row_of is not token_row and not packing.reader:
            raise ValueError(
                "packing.reader is empty, but the lengths of samples depend on row_of. Give a text "
                "that changes when row_of does, so that no plan of other rows is taken."
            )
        if kwargs.get("order") == "mosaic":
            raise ValueError(
                "order='mosaic' repeats runs of mosaicml-streaming, which packed no rows ahead. "
                "Leave the order or the packing out."
            )
        super().__init__(**kwargs)
        if self._world.is_leader:
            log.info("Packing: %s.", self.packing_report)

    def _set_shards(self) -> None:
        super()._set_shards()
        self._check_samples()
        self._samples, self._first_sample = self.spanner, self.sample_offset_per_stream.tolist()
        ends = [*self.shard_offset_per_stream[1:].tolist(), self.num_shards]
        first, self._indexes, self._window = 0, [], {}
        for stream, end in zip(self.streams, ends, strict=True):
            shards = range(first, end)
            self._indexes.append(self._load_index(stream.folder, shards))
            for window in windows(self.samples_per_shard[first:end].tolist(), self.packing.window):
                self._window[first + window[0]] = [first + shard for shard in window]
            first = end
        self.packing_report = sum(
            (index.report for index in self._indexes), PackingReport(self.packing.max_seq_len)
        )
        if not self.packing_report.rows:
            raise ValueError(
                f"There is nothing to pack: all {self.packing_report.samples:,} samples of "
                f"{[stream.folder for stream in self.streams]} are empty."
            )
        digests = "".join(index.digest for index in self._indexes)
        plan = hashlib.blake2b(digests.encode(), digest_size=8).hexdigest()
        self.packed_as = f"best_fit:{self.packing.max_seq_len}:{self.packing.long_rows}:{plan}"
        self._number_samples(np.concatenate([index.rows_per_shard for index in self._indexes]))
        self._first_row = self.sample_offset_per_stream.tolist()

    def _check_samples(self) -> None:
        """Hook that refuses what cannot be packed, before a plan is made."""

    def _load_index(self, folder: str, shards: range) -> PackingIndex:
        """The plan of a stream's rows, made if it is not there."""
        readers = self.shards[shards.start : shards.stop]
        content = self._fingerprint(shards)
        names = repr([(each.chosen, [pair.raw.basename for pair in each.file_pairs])
                      for each in readers])  # fmt: skip
        which = hashlib.blake2b(names.encode(), digest_size=8).hexdigest()
        path = os.path.join(folder, f".packing-{self.packing.key()}-{which}")
        built: list[PackingIndex] = []
        is_building = False

        def build() -> PackingIndex:
            ends = np.cumsum([len(each) for each in readers])
            lengths = np.fromiter(self._counted(folder, shards, int(ends[-1])), np.int64)
            return PackingIndex.build(np.split(lengths, ends[:-1]), self.packing, content)

        def make(out: BinaryIO) -> None:
            nonlocal is_building
            is_building = True
            built.append(build())
            is_building = False
            built[0].save(out)

        if any(not each.file_pairs and not each.chosen for each in readers):
            return build()  # Rows in memory that nothing tells from other ones.
        load = partial(PackingIndex.load, path, content)
        try:
            make_once(path, lambda: load() is not None, make)
        except OSError as error:
            if is_building or error.errno not in _CANNOT_KEEP:
                raise
            log.warning("%s cannot be kept (%s), and is made by each process.", path, error)
        return load() or (built[0] if built else build())

    def _fingerprint(self, shards: range) -> bytes:
        """Sixteen bytes that change with the data, as far as its index tells."""
        digest = hashlib.blake2b(digest_size=16)
        for number in shards:
            shard = self.shards[number]
            facts: list[Any] = [(pair.raw, pair.zip) for pair in shard.file_pairs]
            # A cache with a limit marks files as used by their times.
            if not shard.hashes and not self._has_source(number) and self.cache_limit is None:
                paths = [shard.raw_path(pair) for pair in shard.file_pairs if pair.zip is None]
                facts += [os.stat(path).st_mtime_ns for path in paths if os.path.exists(path)]
            digest.update(repr((type(shard).__name__, shard.chosen, shard.samples, facts)).encode())
        return digest.digest()

    def _has_source(self, shard: int) -> bool:
        return self.streams[self.stream_per_shard[shard]].has_source

    def _counted(self, folder: str, shards: range, total: int) -> Iterator[int]:
        """Tokens of each sample of a stream; its progress is logged."""
        log.info(
            "Counting the tokens of %s samples in %s. Other nodes wait for it in a collective, up "
            "to dist_timeout.",
            f"{total:,}",
            folder,
        )
        start = told = time.monotonic()
        for count, size in enumerate(self._sizes(self._places(shards)), 1):
            yield size
            now = time.monotonic()
            if now - told > _LOG_SECONDS:
                told = now
                left = (now - start) * (total / count - 1) / 60
                log.info(
                    "Counted %s of %s samples in %s, %.0f minutes left.",
                    f"{count:,}",
                    f"{total:,}",
                    folder,
                    left,
                )

    def _places(self, shards: range) -> Iterator[Place]:
        """All samples of these shards; what is remote is fetched a little before its turn."""
        bounds = self.spanner.shard_bounds
        chunks = (np.arange(bounds[each], bounds[each + 1]) for each in shards)
        samples: Iterator[int] = (sample for chunk in chunks for sample in chunk.tolist())
        if self._has_source(shards.start):
            samples = Prefetcher(
                self._cache, lambda shard: (shard,), bounds[1:], predownload=None, batch_size=1
            )(chunks)
        return map(self.spanner.__getitem__, samples)

    def _sizes(self, places: Iterator[Place]) -> Iterator[int]:
        """Tokens of the sample at each place."""
        for shard, offset in places:
            yield len(self._row(shard, offset)["input_ids"])

    def _row(self, shard: int, offset: int, retry: int = 7) -> Row:
        return self._apply(self._row_of, shard, offset, retry)

    def _apply(self, function: Callable[[Any], T], shard: int, offset: int, retry: int = 7) -> T:
        """What a function makes of a sample; an error of it names the sample."""
        sample = self._read(shard, offset, retry)
        try:
            return function(sample)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.shards[shard].place(offset)}: {error}") from error

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, torch.Tensor]:
        """The row of this number."""
        stream = bisect_right(self._first_row, sample_id) - 1
        index, first = self._indexes[stream], self._first_sample[stream]
        parts = []
        for sample, start, size in index.pieces(sample_id - self._first_row[stream]):
            row = self._whole(first + sample, int(index.lengths[sample]), retry)
            parts.append({key: values[start : start + size] for key, values in row.items()})
        return _joined(parts, self.packing)

    def _whole(self, sample: int, length: int, retry: int) -> Row:
        """A sample's row, which is as long as it was when rows were packed."""
        if sample in self._kept:
            return self._kept[sample]
        number, offset = self._samples[sample]
        row = self._row(number, offset, retry)
        for key, values in row.items():
            if len(values) != length:
                shard = self.shards[number]
                kept = os.path.join(shard.folder, ".packing-*")
                raise ValueError(
                    f"{shard.place(offset)}: {key} has {len(values)} tokens, but input_ids had "
                    f"{length} when rows were packed. Give all columns one length; or, if the data "
                    f"has changed since, delete {kept} to pack it anew."
                )
        if length > self.packing.max_seq_len and self.packing.long_rows == "split":
            row = {key: np.array(values, np.int32) for key, values in row.items()}
            held = sum(len(each["input_ids"]) for each in self._kept.values())
            while self._kept and held + length > _KEPT_TOKENS:
                held -= len(self._kept.pop(next(iter(self._kept)))["input_ids"])
            self._kept[sample] = row
        return row

    def __getitems__(self, sample_ids: Sequence[int]) -> list[Any]:
        """The rows of a batch."""
        return [self.get_item(sample_id) for sample_id in sample_ids]

    def shards_behind(self, shard_id: int) -> Sequence[int]:
        """A shard, and those that it is packed with."""
        return self._window.get(shard_id, (shard_id,))


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """A text that changes with what the tokenizer makes of texts and chats, as far as it tells."""
    rules = getattr(tokenizer, "backend_tokenizer", None)
    facts = rules.to_str() if rules is not None else f"{tokenizer.name_or_path} {len(tokenizer)}"
    facts += str(tokenizer.chat_template)
    return hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()


def _joined(pieces: list[Row], packing: Packing) -> dict[str, torch.Tensor]:
    """A packed row."""
    sizes = [len(piece["input_ids"]) for piece in pieces]
    starts = np.cumsum([0, *sizes])
    total = int(starts[-1])
    document = np.full(packing.max_seq_len, -1)
    document[:total] = np.repeat(np.arange(len(pieces)), sizes)
    position = np.zeros_like(document)
    position[:total] = np.arange(total) - np.repeat(starts[:-1], sizes)
    row = {
        "input_ids": _filled([piece["input_ids"] for piece in pieces], packing, packing.padding_id),
        "attention_mask": (document >= 0).astype(np.int64),
        "sequence_id": document,
        "position_ids": position,
    }
    if "labels" in pieces[0]:
        labels = [piece["labels"] for piece in pieces]
        row["labels"] = _filled(labels, packing, CROSS_ENTROPY_IGNORE_INDEX)
        row["labels"][starts[1:-1]] = CROSS_ENTROPY_IGNORE_INDEX
    return {key: torch.from_numpy(values) for key, values in row.items()}


def _filled(parts: list[Any], packing: Packing, padding: int) -> NDArray[np.int64]:
    row = np.full(packing.max_seq_len, padding, np.int64)
    values = np.concatenate(parts)
    row[: len(values)] = values
    return row
