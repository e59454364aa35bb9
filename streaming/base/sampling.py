"""How many samples each shard gives to an epoch, in the orders of mosaicml-streaming."""

import numpy as np
from numpy.typing import NDArray


def get_sampling(
    samples_per_shard: NDArray[np.int64],
    choose: int,
    granularity: int,
    seed: int,
    epoch: int,
    use_epoch: bool,
) -> NDArray[np.int64]:
    """Samples of each shard, so that they add up to ``choose``.

    Args:
        samples_per_shard: Samples that each shard has.
        choose: Samples to take.
        granularity: Neighbours that are taken together.
        seed: Seed of the choice.
        epoch: Number of the epoch.
        use_epoch: Whether each epoch chooses anew.
    """
    if granularity <= 0:
        raise ValueError(f"`sampling_granularity` must be positive, but got {granularity}.")
    if seed < 0:
        raise ValueError(f"`seed` must be non-negative, but got {seed}.")
    sizes = np.asarray(samples_per_shard, np.int64)
    total = int(sizes.sum())
    repeats, rest = divmod(choose, total)
    counts = sizes * repeats
    if not rest:
        return counts
    picks = -(-sizes // granularity)
    shards = np.repeat(np.arange(len(sizes)), picks)
    pick_sizes = np.full(len(shards), granularity, np.int64)
    has_picks = picks > 0
    last = picks.cumsum()[has_picks] - 1
    pick_sizes[last] = sizes[has_picks] - granularity * (picks[has_picks] - 1)
    rng = np.random.default_rng(seed + (epoch if use_epoch else 0))
    order = rng.permutation(len(shards))
    ends = np.minimum(pick_sizes[order].cumsum(), rest)
    np.add.at(counts, shards[order], np.diff(ends, prepend=0))
    return counts
