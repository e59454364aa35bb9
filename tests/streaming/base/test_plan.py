"""Plans: changed mixtures never go unnoticed, and a huge epoch costs next to nothing."""

import itertools
import json
import logging
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import Stream, StreamingDataLoader, StreamingDataset
from streaming.base.plan import ExactPlan, Loading, OrderOptions
from streaming.base.world import World
from tests.streaming.shards import ids_of, world, write_ids

Folders = tuple[str, str, str]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    folder = tmp_path_factory.mktemp("data")
    third = write_ids(folder / "other", 205, per_shard=9)
    return write_ids(folder, 205), write_ids(folder, 75, first=1000), third


def mixture(folders: Folders, first: float = 0.7, second: float = 0.3, **kwargs: Any) -> Any:
    """A dataset of two streams in these proportions."""
    streams = [
        Stream(local=kwargs.pop("instead", folders[0]), proportion=first),
        Stream(local=folders[1], proportion=second),
    ]
    settings: dict[str, Any] = {"shuffle": True, "batch_size": 8} | kwargs
    return StreamingDataset(streams=streams, **settings)


def take(dataset: StreamingDataset, count: int | None = None) -> list[list[int]]:
    size = dataset.batch_size
    loader = StreamingDataLoader(dataset, batch_size=size)
    return [ids_of(batch) for batch in itertools.islice(loader, count)]


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"first": 0.5, "second": 0.5}, "stream 0: 196/205 -> 140/205.*stream 1: 84/75 -> 140/75"),
        ({"shuffle": False}, "shuffle: 262144 -> no"),
        ({"shuffle_block_size": 50}, "shuffle: 262144 -> 50"),
        ({"batching_method": "stratified"}, "batching: random -> stratified"),
        ({"sampling_method": "fixed"}, "sampling: balanced/1 -> fixed/1"),
        ({"sampling_granularity": 4}, "sampling: balanced/1 -> balanced/4"),
        ({"epoch_size": 100}, "stream 0: 196/205 -> 70/205"),
        ({"instead": 2}, "other sizes of shards, or other streams"),
    ],
)
def test_a_changed_mixture_is_refused_by_name(
    changes: dict[str, Any], named: str, folders: Folders
) -> None:
    state = json.loads(json.dumps(mixture(folders).state_dict(16, True)))
    if "instead" in changes:
        changes = {"instead": folders[2]}
    for epoch, sample in ((0, 16), (2, 0)):
        other = mixture(folders, **changes)
        with pytest.raises(ValueError, match=f"mixture has changed.*{named}.*Sample {sample}"):
            other.load_state_dict({**state, "epoch": epoch, "sample_in_epoch": sample})
    other = mixture(folders, **changes)
    other.load_state_dict({**state, "epoch": 0, "sample_in_epoch": 0})  # Nothing is lost.
    assert other.state_dict(0, True) == mixture(folders, **changes).state_dict(0, True)


def test_a_stream_more_or_less_is_named(folders: Folders) -> None:
    one = StreamingDataset(local=folders[0], batch_size=8, shuffle=True)
    with pytest.raises(ValueError, match=r"stream 1: none -> 84/75"):
        mixture(folders).load_state_dict(one.state_dict(8, True))
    with pytest.raises(ValueError, match=r"stream 1: 84/75 -> none"):
        one.load_state_dict(mixture(folders).state_dict(8, True))
    state = {**one.state_dict(8, True), "mixture": "of old"}
    del state["made_of"]
    with pytest.raises(ValueError, match="unknown -> streams=205/205 shuffle=262144"):
        one.load_state_dict(state)


def test_the_seed_of_the_state_counts(folders: Folders, caplog: pytest.LogCaptureFixture) -> None:
    whole = take(StreamingDataset(local=folders[0], batch_size=8, shuffle=True, shuffle_seed=5))
    first = StreamingDataset(local=folders[0], batch_size=8, shuffle=True, shuffle_seed=5)
    take(first, 3)
    other = StreamingDataset(local=folders[0], batch_size=8, shuffle=True, shuffle_seed=6)
    other.load_state_dict(first.state_dict(24, True))
    assert take(other) == whole[3:]
    assert "shuffle_seed=5, as the loaded state says; the dataset was given 6" in caplog.text


@pytest.mark.parametrize("method", ["random", "stratified"])
def test_a_recorded_change_is_itself_resumed_exactly(
    method: str, folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    def build(first: float, second: float, size: int = 8, **kwargs: Any) -> Any:
        return mixture(folders, first, second, batching_method=method, batch_size=size, **kwargs)

    dataset = build(0.7, 0.3)
    take(dataset, 4)
    state = dataset.state_dict(32, True)
    assert "changes" not in state
    caplog.set_level(logging.WARNING)
    changed = build(0.4, 0.6, on_mixture_change="record")
    changed.load_state_dict(state)
    assert "From sample 32 of epoch 0 on the mixture is another: stream 0: 196/205" in caplog.text
    record = [[0, 32, state["made_of"], changed.state_dict(32, True)["made_of"]]]
    # From there on it is the new mixture's order, and nothing else.
    fresh = flat(take(build(0.4, 0.6)))
    whole = flat(take(changed))
    assert whole == fresh[32:]
    whole += flat(take(changed))
    assert changed.state_dict(0, True)["changes"] == record
    # Stopped after the change, under any batches and ranks, without saying anything again.
    again = build(0.4, 0.6, on_mixture_change="record")
    again.load_state_dict(state)
    head = take(again, 3)
    state = json.loads(json.dumps(again.state_dict(24, False)))
    assert state["changes"] == record and len(json.dumps(state)) < 512
    for ranks in (1, 2):
        parts = []
        for rank in range(ranks):
            with world(rank, ranks):
                other = build(0.4, 0.6, size=16 // ranks)
            other.load_state_dict(state)
            parts.append(take(other, 5))
            assert other.state_dict(0, False) == state
        merged = [flat(list(batch)) for batch in zip(*parts, strict=True)]
        assert flat(head) + flat(merged) == whole[: 24 + 80]
    # A second change is recorded behind the first.
    third = build(0.2, 0.8, on_mixture_change="record")
    third.load_state_dict(state)
    assert [entry[:2] for entry in third.state_dict(56, True)["changes"]] == [[0, 32], [0, 56]]


@pytest.mark.parametrize("epoch_size", [24, 40])
def test_a_shorter_epoch_may_be_over_at_once(epoch_size: int, folders: Folders) -> None:
    dataset = mixture(folders)
    take(dataset, 4)
    shorter = mixture(folders, epoch_size=epoch_size, on_mixture_change="record")
    shorter.load_state_dict(dataset.state_dict(32, True))
    assert shorter.samples_left == max(0, epoch_size - 32)
    assert len(flat(take(shorter))) == max(0, epoch_size - 32)
    whole = mixture(folders, epoch_size=epoch_size)
    take(whole)
    assert take(shorter) == take(whole)


@pytest.mark.parametrize("method", ["per_stream", "device_per_stream"])
def test_batches_of_one_stream_are_part_of_the_mixture(method: str, folders: Folders) -> None:
    dataset = mixture(folders, batching_method=method)
    other = mixture(folders, batching_method=method, batch_size=4)
    with pytest.raises(ValueError, match=f"batching: {method}/8 -> {method}/4"):
        other.load_state_dict(dataset.state_dict(16, True))
    with world(1, 2):
        other = mixture(folders, batching_method=method, batch_size=4)
    if method == "per_stream":
        other.load_state_dict(dataset.state_dict(16, True))
    else:
        with pytest.raises(ValueError, match="has changed"):
            other.load_state_dict(dataset.state_dict(16, True))


def test_mosaic_states_say_too_little_for_records(folders: Folders) -> None:
    with pytest.raises(ValueError, match="'record' has no effect with order='mosaic'"):
        mixture(folders, order="mosaic", on_mixture_change="record")


def test_many_streams_are_summed_up(tmp_path: Path) -> None:
    folder = write_ids(tmp_path, 9)
    dataset = StreamingDataset(streams=[Stream(local=folder) for _ in range(40)], batch_size=4)
    state = dataset.state_dict(8, True)
    assert state["made_of"].startswith("streams=360/360*40 ") and len(json.dumps(state)) < 256


@pytest.mark.parametrize(("streams", "method"), [(1, "random"), (8, "random"), (8, "stratified")])
def test_ten_billion_samples_cost_neither_memory_nor_time(streams: int, method: str) -> None:
    options = OrderOptions(True, "py1e", None, "balanced", 1, "relaxed", None, method)
    sizes = np.split(np.full(1_000_000, 10_000, np.int64), streams)
    loading = Loading(World(128, 8, 4, 4095), 4, False)
    tracemalloc.start()
    start = time.perf_counter()
    plan = ExactPlan(options, sizes, [int(part.sum()) for part in sizes])
    begin = plan.start_from({"epoch": 0, "sample_in_epoch": 0, "shuffle_seed": 7}, 7, loading)
    first = next(plan.sample_ids(begin, loading))
    state = plan.state(begin, 7 * 10**9, loading)
    middle = next(plan.sample_ids(plan.start_from(state, 7, loading), loading))
    seconds = time.perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(first)) == len(first) and not np.isin(first, middle).any()
    assert max(first.max(), middle.max()) < 10**10
    assert len(json.dumps(state)) < 512
    assert seconds < 15 and peak < 200e6
