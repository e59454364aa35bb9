"""What an epoch is made of, in one line for states, and in words how two such lines differ."""

from itertools import zip_longest

from streaming.base.order.epoch import Mixture

_STREAMS_NAMED = 32


def describe(mixture: Mixture) -> str:
    """Says in a line what the order depends on beside seed and epoch, without sizes of shards.

    Of each stream it names the samples that an epoch takes and those that there are; of more than
    32 streams only their sums. For example ``streams=143/205+120/75 shuffle=262144
    sampling=balanced/1 batching=random``.
    """
    streams = "+".join(f"{draw.choose}/{draw.size}" for draw in mixture.draws)
    if len(mixture.draws) > _STREAMS_NAMED:
        size = sum(draw.size for draw in mixture.draws)
        streams = f"{sum(mixture.counts)}/{size}*{len(mixture.draws)}"
    unit = f"/{mixture.unit}" if mixture.has_units else ""
    return (
        f"streams={streams} shuffle={mixture.block_size if mixture.shuffle else 'no'} "
        f"sampling={mixture.sampling_method}/{mixture.granularity} "
        f"batching={mixture.batching_method}{unit}"
        + (f" packing={mixture.packing}" if mixture.packing else "")
    )


def differences(before: str, after: str) -> list[str]:
    """Names what differs in two mixtures, old value and new value, given their lines."""
    old, new = (dict(part.split("=") for part in line.split()) for line in (before, after))
    streams = (line.pop("streams").split("+") for line in (old, new))
    out = [
        f"stream {number}: {was} -> {now} (samples of an epoch / of the stream)"
        for number, (was, now) in enumerate(zip_longest(*streams, fillvalue="none"))
        if was != now
    ]
    out += [
        f"{name}: {old.get(name, 'none')} -> {new.get(name, 'none')}"
        for name in old | new
        if old.get(name) != new.get(name)
    ]
    return out or ["other sizes of shards, or other streams"]
