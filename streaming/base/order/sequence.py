"""The samples of one stream in the order in which an epoch draws them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming.base.order.blocks import BlockShuffle
from streaming.base.order.feistel import feistel, make_key, mix, random_words, shuffled


@dataclass(frozen=True)
class StreamDraw:
    """What an epoch takes from one stream.

    Args:
        shard_sizes: Samples of each shard.
        choose: How many samples the epoch takes.
        first_id: Global number of the stream's first sample.
    """

    shard_sizes: NDArray[np.int64]
    choose: int
    first_id: int

    @property
    def size(self) -> int:
        """Samples in the stream."""
        return int(self.shard_sizes.sum())


class StreamSequence:
    """Maps place k of a stream's part in the epoch to a sample.

    The stream is gone through in passes, each over all its shards in another order; what is left
    over takes some samples of every shard. A pass visits a shard once, so that a cache serves it.

    Args:
        draw: The stream and how much of it.
        number: The stream's number in the mixture.
        seed: Seed of the whole order.
        epoch: Number of the epoch.
        shuffle: Whether to shuffle; without, passes go from front to back.
        block_size: Places that are mixed with each other.
        fixed_subset: Whether every epoch's left-over holds the same samples.
        granularity: Neighbours that the left-over takes together.
    """

    def __init__(
        self,
        draw: StreamDraw,
        number: int,
        seed: int,
        epoch: int,
        shuffle: bool,
        block_size: int,
        fixed_subset: bool,
        granularity: int,
    ) -> None:
        self.length = draw.choose
        self._granularity = granularity
        self._sizes = draw.shard_sizes
        self._first = draw.first_id + np.concatenate([[0], draw.shard_sizes.cumsum()[:-1]])
        order_key = (seed, number, epoch)
        # Without shuffling nothing changes from epoch to epoch, as one expects of an evaluation.
        subset_epoch = 0 if fixed_subset or not shuffle else epoch
        self._subset_key = make_key(seed, number, "subset", subset_epoch)
        passes, rest = divmod(draw.choose, max(1, draw.size))
        shards, counts = [], []
        for turn in range(passes + bool(rest)):
            visited = np.arange(len(self._sizes))
            if shuffle:
                visited = shuffled(make_key(*order_key, "pass", turn), len(visited))
            taken = self._sizes[visited]
            if turn == passes:
                share = self._share_out(rest)
                visited = visited[share[visited] > 0]
                taken = share[visited]
            shards.append(visited)
            counts.append(taken)
        self._shards = np.concatenate(shards) if shards else np.empty(0, np.int64)
        self._counts = np.concatenate(counts) if counts else np.empty(0, np.int64)
        self._ends = self._counts.cumsum()
        self._shuffle = BlockShuffle(draw.choose, block_size, *order_key) if shuffle else None

    def _share_out(self, rest: int) -> NDArray[np.int64]:
        """How many of ``rest`` samples each shard gives: its share, in whole picks."""
        total = int(self._sizes.sum())
        keys = random_words(self._subset_key, len(self._sizes))
        order = np.argsort(keys, kind="stable")  # So that rounding favours no shard for ever.
        ends = self._sizes[order].cumsum()
        if self._granularity == 1:
            shares = np.diff(_scaled(ends, rest, total), prepend=0)
        else:
            shares = np.array(_whole_picks(self._sizes[order], rest, total, self._granularity))
        out = np.empty_like(self._sizes)
        out[order] = shares
        return out

    def ids(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Global sample numbers at these places of the stream's part."""
        if self._shuffle is not None:
            places = self._shuffle(places)
        visit = np.searchsorted(self._ends, places, side="right")
        shard, count = self._shards[visit], self._counts[visit]
        offset = places - self._ends[visit] + count
        partial = count < self._sizes[shard]
        if partial.any():
            offset[partial] = self._pick(shard[partial], offset[partial], count[partial])
        return self._first[shard] + offset

    def _pick(
        self, shard: NDArray[np.int64], offset: NDArray[np.int64], count: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Which sample of a shard is the one of this number among the ``count`` that are taken."""
        picks = self._sizes[shard] // self._granularity
        pick, within = np.divmod(offset, self._granularity)
        whole = pick < picks  # The short pick at the shard's end, if any, comes last.
        pick, picks = pick[whole], picks[whole]
        if self._shuffle is None:
            taken = np.minimum(picks, -(-count[whole] // self._granularity))
            moved = pick * picks // taken  # Evenly spaced, front to back.
        else:
            words = np.uint64(self._subset_key) + shard[whole].astype(np.uint64)
            moved = feistel(pick, picks, mix(words))
        out = offset.copy()
        out[whole] = moved * self._granularity + within[whole]
        return out


def _scaled(x: NDArray[np.int64], times: int, over: int) -> NDArray[np.int64]:
    """``x * times // over`` without overflow."""
    if int(x[-1]) * times < 1 << 62:
        return x * times // over
    return np.array([int(value) * times // over for value in x], np.int64)


def _whole_picks(sizes: NDArray[np.int64], rest: int, total: int, granularity: int) -> list[int]:
    """Shares in multiples of the granularity, as near to proportional as that can be."""
    shares, taken, passed = [], 0, 0
    for size in sizes.tolist():
        passed += size
        missing = max(0, passed * rest // total - taken)
        share = min(-(-missing // granularity) * granularity, size, rest - taken)
        shares.append(share)
        taken += share
    return shares
