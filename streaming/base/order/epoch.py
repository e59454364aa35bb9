"""The order of an epoch: a pure function of seed, epoch and mixture."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.base.order.mixture import Concatenated, Mixer, Sampled, Stratified, WholeUnits
from streaming.base.order.sequence import StreamDraw, StreamSequence

BATCHING_METHODS = ("random", "stratified", "per_stream", "device_per_stream")


@dataclass(frozen=True)
class Mixture:
    """What an epoch is made of; with seed and epoch number it says the whole order.

    Args:
        draws: The streams and how much of each.
        shuffle: Whether to shuffle.
        block_size: Places that are mixed with each other.
        sampling_method: ``balanced`` (each epoch takes other samples where it takes not all) or
            ``fixed``.
        granularity: Neighbours that are taken together where not all of a stream is.
        batching_method: How streams share batches.
        batch_size: Samples of a device batch; matters to batches of one stream only.
        num_ranks: Devices; matters to batches of one stream only.
        packing: What samples are packed into, if they are; the draws are then of packed rows.
    """

    draws: tuple[StreamDraw, ...]
    shuffle: bool
    block_size: int
    sampling_method: str = "balanced"
    granularity: int = 1
    batching_method: str = "random"
    batch_size: int = 1
    num_ranks: int = 1
    packing: str | None = None

    @property
    def counts(self) -> list[int]:
        """Samples that the epoch takes from each stream."""
        return [draw.choose for draw in self.draws]

    @property
    def unit(self) -> int:
        """Neighbouring places that must come from one stream."""
        units = {"per_stream": self.num_ranks * self.batch_size}
        units["device_per_stream"] = self.batch_size
        return units.get(self.batching_method, 1)

    @property
    def has_units(self) -> bool:
        """Whether the order depends on the size of batches."""
        return self.batching_method in ("per_stream", "device_per_stream")

    def fingerprint(self) -> str:
        """Sixteen hex digits that change when anything changes that the order depends on."""
        digest = hashlib.blake2b(digest_size=8)
        for draw in self.draws:
            digest.update(f"{draw.choose} {draw.first_id} {len(draw.shard_sizes)};".encode())
            digest.update(draw.shard_sizes.astype("<i8").tobytes())
        facts: list[object] = [self.shuffle, self.sampling_method, self.granularity]
        facts += [self.batching_method, self.unit]
        if self.shuffle:
            facts.append(self.block_size)
        if self.packing:
            facts.append(self.packing)
        digest.update(repr(facts).encode())
        return digest.hexdigest()


class EpochOrder:
    """Sample numbers by their place in an epoch."""

    def __init__(self, mixer: Mixer, sequences: Sequence[StreamSequence]) -> None:
        self._mixer = mixer
        self._sequences = sequences

    def __len__(self) -> int:
        return self._mixer.length

    def ids(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Global sample numbers at these places."""
        places = np.asarray(places, np.int64)
        if len(self._sequences) == 1 and isinstance(self._mixer, Concatenated):
            return self._sequences[0].ids(places)
        stream, number = self._mixer(places)
        out = np.empty_like(places)
        for source in np.unique(stream):
            chosen = stream == source
            out[chosen] = self._sequences[source].ids(number[chosen])
        return out


def order(seed: int, epoch: int, mixture: Mixture) -> EpochOrder:
    """The order of an epoch, computed where it is looked at.

    Nothing in it knows of ranks, nodes, workers or resumption: those only slice it. What it keeps
    in memory is a few numbers per visit of a shard.
    """
    total = max(1, sum(mixture.counts))
    sequences = []
    for number, draw in enumerate(mixture.draws):
        sequences.append(
            StreamSequence(
                draw,
                number,
                seed,
                epoch,
                mixture.shuffle,
                max(1, mixture.block_size * draw.choose // total),
                mixture.sampling_method == "fixed",
                mixture.granularity,
            )
        )
    return EpochOrder(_build_mixer(seed, epoch, mixture), sequences)


def _build_mixer(seed: int, epoch: int, mixture: Mixture) -> Mixer:
    """How the streams of a mixture are mixed."""
    counts = mixture.counts
    if mixture.batching_method == "random":
        if mixture.shuffle and len(counts) > 1:
            return Sampled(counts, mixture.block_size, seed, epoch)
        return Concatenated(counts)
    if mixture.batching_method == "stratified":
        return Stratified(counts)
    multiple = mixture.num_ranks if mixture.batching_method == "device_per_stream" else 1
    return WholeUnits(counts, mixture.unit, multiple, seed, epoch)


def epoch_length(mixture: Mixture) -> int:
    """Samples of an epoch."""
    return _build_mixer(0, 0, mixture).length


def check_batching(mixture: Mixture) -> None:
    """Says which stream is too small for how batches are made.

    Raises:
        ValueError: if the method is unknown, or a stream cannot take part in it.
    """
    method, total = mixture.batching_method, max(1, sum(mixture.counts))
    if method not in BATCHING_METHODS:
        raise ValueError(
            f"Invalid batching method: {method}. Must be one of {', '.join(BATCHING_METHODS)}."
        )
    batch = mixture.num_ranks * mixture.batch_size
    for number, count in enumerate(mixture.counts):
        others = len(mixture.draws) - 2
        if method == "stratified" and count * (batch - others) < total:
            share = count / total
            raise ValueError(
                f"Number of samples for stream {number} is 0 in some batches, or all: its "
                f"proportion, {share:.6g}, is {share * batch:.4g} samples of a global batch of "
                f"{batch}, and must be at least {1 + share * others:.4g} (1 + proportion * "
                "(streams - 2)). Increase the batch size or the stream's proportion, or use "
                "batching_method='random'."
            )
        if mixture.unit > 1 and count < mixture.unit:
            what = "global" if method == "per_stream" else "device"
            raise ValueError(
                f"Stream with index {number} does not have an adequate number of samples to "
                f"construct a complete {what} batch of {mixture.unit}: the epoch takes {count} "
                "from it. Take more of it, or use a smaller batch."
            )
