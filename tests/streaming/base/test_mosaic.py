"""order='mosaic': every recorded order of mosaicml-streaming, and its loaders' runs."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming import Stream, StreamingDataLoader, StreamingDataset
from streaming.base.mosaic import MosaicPlan
from streaming.base.plan import Loading, OrderOptions
from streaming.base.progress import Start
from streaming.base.sampling import get_sampling
from streaming.base.shuffle import get_shuffle
from streaming.base.weights import apply_weights
from streaming.base.world import World
from tests.streaming.shards import ids_of, world

SHUFFLES = {
    "naive": ([8, 0, 7, 1, 3, 6, 2, 4, 5, 9], [0, 7, 3, 6, 9, 5, 8, 1, 2, 4]),
    "py1s": ([3, 2, 0, 1, 8, 9, 4, 5, 6, 7], [8, 0, 3, 2, 1, 5, 7, 6, 4, 9]),
    "py2s": ([2, 3, 0, 1, 9, 4, 6, 5, 7, 8], [9, 0, 3, 1, 2, 8, 6, 7, 5, 4]),
    "py1e": ([3, 2, 0, 1, 8, 4, 9, 6, 5, 7], [0, 3, 8, 2, 1, 6, 5, 7, 9, 4]),
    "py1br": ([3, 1, 0, 2, 8, 6, 5, 4, 7, 9], [8, 0, 2, 1, 3, 7, 9, 6, 5, 4]),
}


@pytest.mark.parametrize("algo", SHUFFLES)
def test_shuffles(algo: str) -> None:
    for epoch, want in enumerate(SHUFFLES[algo]):
        assert get_shuffle(algo, [4, 4, 2], 2, 7, epoch, 8).tolist() == want


def test_sampling() -> None:
    sizes = np.array([4, 4, 2])
    for choose, granularity, epoch, want in (
        (7, 1, 0, [2, 3, 2]),
        (7, 3, 0, [4, 3, 0]),
        (20, 1, 0, [8, 8, 4]),
        (25, 1, 1, [10, 10, 5]),
    ):
        got = get_sampling(sizes, choose, granularity, 9176, epoch, True)
        assert got.tolist() == want


def resolve(record: dict[str, Any]) -> list[Stream]:
    specs: list[dict[str, Any]] = record.get("streams") or [{"dir": "order_a"}]
    return [Stream(local=s["dir"], **{k: v for k, v in s.items() if k != "dir"}) for s in specs]


def replay(record: dict[str, Any], shards: dict[str, list[int]]) -> list[Any]:
    """The order that our generator makes for a record."""
    kwargs = record["kwargs"]
    streams = resolve(record)
    sizes = [np.array(shards[stream.local]) for stream in streams]
    size = kwargs.get("epoch_size")
    totals = [int(size.sum()) for size in sizes]
    seed = kwargs.get("shuffle_seed", 9176)
    apply_weights(streams, totals, int(size) if size else None, seed)
    for stream, stats in zip(streams, record.get("stream_stats", []), strict=False):
        assert {name: getattr(stream, name) for name in stats} == stats
    options = OrderOptions(
        shuffle=kwargs["shuffle"],
        shuffle_algo=kwargs.get("shuffle_algo", "py1e"),
        shuffle_block_size=kwargs.get("shuffle_block_size"),
        sampling_method=kwargs.get("sampling_method", "balanced"),
        sampling_granularity=kwargs.get("sampling_granularity", 1),
        partition_algo=kwargs.get("partition_algo", "relaxed"),
        num_canonical_nodes=kwargs.get("num_canonical_nodes"),
        batching_method=record["batching_method"],
    )
    plan = MosaicPlan(options, sizes, [stream.choose or 0 for stream in streams])
    here = World(record["nodes"], record["ranks_per_node"], record["workers_per_rank"], 0)
    start = Start(
        record["epoch"],
        record["sample_in_epoch"],
        seed,
        kwargs.get("num_canonical_nodes"),
        record.get("initial_physical_nodes"),
    )
    return plan.work(start, Loading(here, 4, False)).tolist()


@pytest.mark.filterwarnings("ignore:Trying to partition", "ignore:Attempting to partition")
@pytest.mark.filterwarnings("ignore:Shuffle block size was smaller")
def test_every_recorded_order(golden: Path) -> None:
    recorded = json.loads((golden / "mds" / "orders.json").read_text())
    same = 0
    for record in recorded["records"]:
        if "error" in record:
            with pytest.raises(ValueError):
                replay(record, recorded["shards"])
        else:
            assert replay(record, recorded["shards"]) == record["sample_ids"], record["tag"]
            same += 1
    assert same == 240


def build(run: dict[str, Any], folder: Path, order: str = "mosaic") -> StreamingDataLoader:
    kwargs = dict(run["kwargs"])
    if run["streams"]:
        kwargs["streams"] = [
            Stream(local=str(folder / s["dir"]), **{k: v for k, v in s.items() if k != "dir"})
            for s in run["streams"]
        ]
    else:
        kwargs["local"] = str(folder / "order_a")
    dataset = StreamingDataset(batch_size=4, order=order, **kwargs)
    return StreamingDataLoader(
        dataset, batch_size=4, num_workers=run["num_workers"], drop_last=run["drop_last"]
    )


@pytest.mark.filterwarnings("ignore:Trying to partition", "ignore:Length of IterableDataset")
@pytest.mark.parametrize("number", range(10))
def test_recorded_loader_runs(number: int, golden: Path) -> None:
    run = json.loads((golden / "mds" / "real_loader_runs.json").read_text())[number]
    loader = build(run, golden / "mds")
    assert len(loader) == run["len"]
    for epoch in run["epochs"]:
        assert [ids_of(batch) for batch in loader] == epoch
    assert loader.state_dict() == run["state_dict_after_epochs"]
    if "resume" not in run:
        return
    resume = run["resume"]
    loader = build(run, golden / "mds")
    batches = iter(loader)
    got = [ids_of(next(batches)) for _ in range(resume["stopped_after_batches"])]
    assert got == resume["before"]
    state = loader.state_dict()
    assert state == resume["state_dict"]
    loader = build(run, golden / "mds")
    loader.load_state_dict(state or {})
    assert [ids_of(batch) for batch in loader] == resume["after_resume_same_epoch"]
    assert [ids_of(batch) for batch in loader] == resume["next_epoch"]
    assert loader.state_dict() == resume["state_dict_end"]


@pytest.mark.filterwarnings("ignore:Trying to partition", "ignore:Length of IterableDataset")
def test_recorded_runs_of_two_ranks(golden: Path) -> None:
    runs = json.loads((golden / "mds" / "real_2rank_runs.json").read_text())["runs"]
    for name, by_rank in runs.items():
        algo, workers = name.split("|")
        for rank, epochs in enumerate(by_rank):
            with world(rank, 2):
                dataset = StreamingDataset(
                    local=str(golden / "mds" / "order_a"),
                    batch_size=4,
                    shuffle=True,
                    shuffle_algo=algo,
                    shuffle_seed=17,
                    order="mosaic",
                )
            loader = StreamingDataLoader(dataset, batch_size=4, num_workers=int(workers))
            for epoch in epochs:
                assert [ids_of(batch) for batch in loader] == epoch


def test_bad_arguments(golden: Path) -> None:
    folder = str(golden / "mds" / "order_a")
    with pytest.raises(ValueError, match="Invalid shuffle algorithm: py9"):
        StreamingDataset(local=folder, shuffle_algo="py9", order="mosaic")
    dataset = StreamingDataset(
        local=folder, partition_algo="odd", order="mosaic", batch_size=4, shuffle=True
    )
    with pytest.raises(ValueError, match="Invalid partition algorithm: odd"):
        next(iter(dataset))


def test_states_of_the_other_order_are_named(golden: Path) -> None:
    folder = str(golden / "mds" / "order_a")
    exact = StreamingDataset(local=folder, batch_size=4)
    mosaic = StreamingDataset(local=folder, batch_size=4, order="mosaic")
    with pytest.warns(UserWarning, match="Leave `order` out"):
        mosaic.load_state_dict(exact.state_dict(8, True))
    with pytest.warns(UserWarning, match="Pass order='mosaic'"):
        exact.load_state_dict(mosaic.state_dict(8, True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mosaic.load_state_dict(mosaic.state_dict(8, True))
        exact.load_state_dict(exact.state_dict(8, True))


@pytest.mark.filterwarnings("ignore:Trying to partition", "ignore:Length of IterableDataset")
@pytest.mark.filterwarnings("ignore:`.*only chooses one of mosaicml-streaming's permutations")
@pytest.mark.parametrize("keys", [5, 4])
def test_recorded_states_load_into_both_orders(keys: int, golden: Path) -> None:
    runs = json.loads((golden / "mds" / "real_loader_runs.json").read_text())
    for run in (run for run in runs if "resume" in run):
        state = dict(list(run["resume"]["state_dict"].items())[:keys])
        mosaic = build(run, golden / "mds")
        mosaic.load_state_dict(state)
        assert [ids_of(batch) for batch in mosaic] == run["resume"]["after_resume_same_epoch"]
        exact = build(run, golden / "mds", "exact")
        with pytest.warns(UserWarning, match="Pass order='mosaic' to go on exactly"):
            exact.load_state_dict(state)
        told = exact.state_dict() or {}
        assert {name: told[name] for name in ("epoch", "sample_in_epoch", "shuffle_seed")} == {
            name: state[name] for name in ("epoch", "sample_in_epoch", "shuffle_seed")
        }
        assert told["changes"][0][2] == "order=mosaic"
        rest = sum(len(ids_of(batch)) for batch in exact)
        assert rest == exact.dataset.epoch_size - state["sample_in_epoch"]  # type: ignore[attr-defined]
    # Between epochs no place is lost.
    exact = build(runs[0], golden / "mds", "exact")
    exact.load_state_dict({**runs[0]["resume"]["state_dict"], "sample_in_epoch": 0})
