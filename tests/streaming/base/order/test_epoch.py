"""The order of an epoch: what it promises, for any mixture."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streaming.base.order import Mixture, StreamDraw, order
from streaming.base.order.epoch import BATCHING_METHODS, check_batching, epoch_length
from streaming.base.order.mixture import Stratified, cut


def mixture(sizes: list[list[int]], choose: list[int], **kwargs: object) -> Mixture:
    draws, first = [], 0
    for shards, count in zip(sizes, choose, strict=True):
        draws.append(StreamDraw(np.array(shards, np.int64), count, first))
        first += sum(shards)
    settings = {"shuffle": True, "block_size": 64, **kwargs}
    return Mixture(tuple(draws), **settings)  # type: ignore[arg-type]


def all_ids(seed: int, epoch: int, mix: Mixture) -> np.ndarray:
    whole = order(seed, epoch, mix)
    return whole.ids(np.arange(len(whole)))


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    shards = st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(any)
    sizes = draw(st.lists(shards, min_size=1, max_size=4))
    choose = [draw(st.integers(1, 3 * sum(stream))) for stream in sizes]
    return mixture(
        sizes,
        choose,
        shuffle=draw(st.booleans()),
        block_size=draw(st.integers(1, 80)),
        granularity=draw(st.integers(1, 5)),
        sampling_method=draw(st.sampled_from(["balanced", "fixed"])),
        batching_method=draw(st.sampled_from(BATCHING_METHODS)),
        batch_size=draw(st.integers(1, 3)),
        num_ranks=draw(st.integers(1, 3)),
    )


@settings(max_examples=150, deadline=None)
@given(mixtures(), st.integers(0, 5), st.integers(0, 3))
def test_an_epoch_takes_what_it_should(mix: Mixture, seed: int, epoch: int) -> None:
    ids = all_ids(seed, epoch, mix)
    assert len(ids) == epoch_length(mix)
    for draw in mix.draws:
        counts = np.bincount(ids, minlength=draw.first_id + draw.size)
        counts = counts[draw.first_id : draw.first_id + draw.size]
        assert counts.max() <= -(-draw.choose // draw.size)
        if mix.batching_method in ("random", "stratified"):
            assert counts.sum() == draw.choose
            assert counts.min() >= draw.choose // draw.size


@settings(max_examples=60, deadline=None)
@given(mixtures(), st.randoms(use_true_random=False))
def test_a_place_is_the_same_however_it_is_looked_at(mix: Mixture, random: object) -> None:
    whole = order(3, 1, mix)
    ids = whole.ids(np.arange(len(whole)))
    places = np.arange(len(whole))
    random.shuffle(places)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(order(3, 1, mix).ids(places), ids[places])
    for place in places[:5]:
        assert order(3, 1, mix).ids(np.array([place])) == ids[place]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
@example([1, 1, 1, 1, 9])
def test_cuts_are_even_and_never_go_back(counts: list[int]) -> None:
    total, last = sum(counts), [0] * len(counts)
    for place in range(total + 1):
        taken = cut(counts, place)
        assert sum(taken) == place
        assert all(b >= a for a, b in zip(last, taken, strict=True))
        for count, took in zip(counts, taken, strict=True):
            # Each stream is off by half a draw at most, and all of them move the place.
            bound = 0.5 + count / total * (len(counts) - 2) / 2
            assert abs(took - count * place / total) <= bound + 1e-9
        last = taken
    assert last == counts


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=8), st.integers(2, 40))
@example([60, *[2] * 7], 8)
def test_stratified_batches_hold_each_stream_in_its_share(counts: list[int], batch: int) -> None:
    mix = mixture([[60]] * len(counts), counts, batching_method="stratified", batch_size=batch)
    streams = all_ids(0, 0, mix) // 60
    total = sum(counts)
    windows = [streams[start : start + batch] for start in range(total - batch + 1)]  # Resumed too.
    for number, count in enumerate(counts):
        found = [int((window == number).sum()) for window in windows]
        bound = 1 + count / total * (len(counts) - 2)
        assert all(abs(one - batch * count / total) < bound for one in found)
    try:
        check_batching(mix)
    except ValueError:
        return
    assert all(len(np.unique(window)) == len(counts) for window in windows)


def test_stratified_batches_that_would_lack_a_stream_are_refused() -> None:
    counts = [694, 1059, 954, 486, 606]
    streams = Stratified(counts)(np.arange(447 * 8, 448 * 8))[0]
    assert np.bincount(streams, minlength=5).tolist() == [2, 2, 2, 0, 2]
    sizes = [[count] for count in counts]
    with pytest.raises(ValueError, match="stream 0 is 0 in some.*1.461 samples.*at least 1.548"):
        check_batching(mixture(sizes, counts, batching_method="stratified", batch_size=8))
    check_batching(mixture(sizes, counts, batching_method="stratified", batch_size=11))


@pytest.mark.parametrize(("method", "unit"), [("per_stream", 6), ("device_per_stream", 3)])
def test_batches_of_one_stream(method: str, unit: int) -> None:
    mix = mixture([[10, 10], [30]], [20, 30], batching_method=method, batch_size=3, num_ranks=2)
    ids = all_ids(0, 0, mix).reshape(-1, unit)
    streams = ids // 20 > 0
    assert (streams == streams[:, :1]).all()
    assert 0 < streams[:, 0].sum() < len(streams)
    assert len(ids.ravel()) % 6 == 0
    assert len(np.unique(ids)) == ids.size


def test_without_shuffling_it_goes_from_front_to_back() -> None:
    mix = mixture([[3, 2], [4]], [12, 2], shuffle=False)
    assert all_ids(5, 2, mix).tolist() == [0, 1, 2, 3, 4] * 2 + [0, 3] + [5, 7]


def test_shuffling() -> None:
    mix = mixture([[100] * 10], [1000], block_size=300)
    first, again, second, other = (all_ids(*key, mix) for key in ((1, 0), (1, 0), (1, 1), (2, 0)))
    np.testing.assert_array_equal(first, again)
    for ids in (second, other):
        assert (ids == first).mean() < 0.02
    for ids in (first, second, other):
        assert (ids == np.arange(1000)).mean() < 0.02
        # Three shards' worth of samples come from no more than four shards at a time.
        assert max(len(np.unique(ids[i : i + 300] // 100)) for i in (0, 300, 600)) <= 4


def test_sampling_methods() -> None:
    sizes, choose = [[50] * 4], [60]
    balanced = [set(all_ids(1, e, mixture(sizes, choose))) for e in range(3)]
    assert balanced[0] != balanced[1]
    fixed = [all_ids(1, e, mixture(sizes, choose, sampling_method="fixed")) for e in range(3)]
    assert set(fixed[0]) == set(fixed[1]) == set(fixed[2])
    assert fixed[0].tolist() != fixed[1].tolist()
    assert sorted(np.bincount(fixed[0] // 50)) == [15, 15, 15, 15]
    picked = np.sort(all_ids(1, 0, mixture(sizes, [40], granularity=10)))
    assert (picked.reshape(-1, 10) - picked[::10, None] == np.arange(10)).all()
    assert not set(picked[::10] % 10).difference({0})


def test_mixtures_that_cannot_make_batches() -> None:
    with pytest.raises(ValueError, match="Number of samples for stream 1 is 0"):
        check_batching(mixture([[99], [1]], [99, 1], batching_method="stratified", batch_size=4))
    with pytest.raises(ValueError, match="Stream with index 1 does not have an adequate number"):
        check_batching(mixture([[9], [3]], [9, 3], batching_method="per_stream", batch_size=4))
    with pytest.raises(ValueError, match="Invalid batching method: odd"):
        check_batching(mixture([[9]], [9], batching_method="odd"))


def test_fingerprint_tells_mixtures_apart() -> None:
    base = mixture([[5, 5], [4]], [10, 4])
    others = [
        mixture([[5, 5], [4]], [10, 5]),
        mixture([[5, 4], [4]], [10, 4]),
        mixture([[5, 5], [4]], [10, 4], shuffle=False),
        mixture([[5, 5], [4]], [10, 4], block_size=3),
        mixture([[5, 5], [4]], [10, 4], batching_method="stratified"),
    ]
    prints = {mix.fingerprint() for mix in [base, *others]}
    assert len(prints) == 6 and base.fingerprint() == mixture([[5, 5], [4]], [10, 4]).fingerprint()


def test_the_order_of_all_time() -> None:
    """A change here changes every run that is resumed: it must never be by accident."""
    mix = mixture([[4, 4], [6]], [8, 9])
    assert all_ids(17, 1, mix).tolist() == [9, 4, 12, 8, 6, 11, 5, 2, 10, 3, 1, 12, 7, 8, 13, 9, 0]
