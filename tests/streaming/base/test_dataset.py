"""StreamingDataset: arguments, reading, iteration and states."""

import copy
import inspect
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from streaming import Stream, StreamingDataset
from streaming.base import plan as plan_module
from streaming.base.stream import streams_registry
from tests.launch import run_ranks
from tests.streaming.shards import Square, ids_of, world, write_ids


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_ids(tmp_path_factory.mktemp("data"), 50)


def epoch(loader: Any) -> list[list[int]]:
    return [ids_of(batch) for batch in loader]


def test_facts(folder: str, tmp_path: Path) -> None:
    other = write_ids(tmp_path, 20, first=1000)
    dataset = StreamingDataset(streams=[Stream(local=folder), Stream(local=other, repeat=0.5)])
    assert (dataset.num_streams, dataset.num_shards, dataset.num_samples) == (2, 11, 70)
    assert dataset.size == 70 and dataset.epoch_size == 60 and len(dataset) == 60
    assert dataset.samples_per_stream.tolist() == [50, 20]
    assert dataset.shards_per_stream.tolist() == [8, 3]
    assert dataset.stream_per_shard.tolist() == [0] * 8 + [1] * 3
    assert dataset.shard_offset_per_stream.tolist() == [0, 8]
    assert dataset.sample_offset_per_stream.tolist() == [0, 50]
    assert dataset.sample_offset_per_shard[:3].tolist() == [0, 7, 14]
    assert dataset[50]["id"] == 1000
    second = dataset.streams[1]
    assert (second.choose, second.repeat, second.proportion) == (10, 0.5, 10 / 60)
    again = StreamingDataset(streams=dataset.streams)  # Streams can be used again.
    assert again.epoch_size == 60


def test_indexing(folder: str) -> None:
    dataset = StreamingDataset(local=folder)

    def ids(found: Any) -> Any:
        return [ids(item) for item in found] if isinstance(found, list) else found["id"]

    assert ids(dataset[3]) == ids(dataset[np.int64(3)]) == 3 and ids(dataset[-1]) == 49
    assert ids(dataset[2:8:3]) == [2, 5] and ids(dataset[[1, [2, 3]]]) == [1, [2, 3]]
    assert ids(dataset[np.array([[4, 5]])]) == [[4, 5]]
    assert ids(dataset.__getitems__([7, 8])) == [7, 8]
    for bad in (50, -51):
        with pytest.raises(IndexError, match=f"Invalid sample index: {bad}"):
            dataset[bad]
    with pytest.raises(ValueError, match="Unsupported argument type"):
        dataset["x"]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "either `streams` or `remote`/`local`, but not both"),
        ({"streams": []}, "either `streams` or `remote`/`local`, but not both"),
        ({"local": "x", "streams": [Stream(local="x")]}, "but not both"),
        ({"streams": [Stream()]}, "`remote` and/or `local` path must be provided"),
        ({"local": "x", "sampling_method": "odd"}, "Invalid sampling method: odd"),
        ({"local": "x", "batching_method": "odd"}, "Invalid batching method: odd"),
        ({"local": "x", "order": "odd"}, "Invalid order: odd"),
        ({"local": "x", "on_mixture_change": "odd"}, "Invalid on_mixture_change: odd"),
        ({"local": "x", "sampling_granularity": 0}, "`sampling_granularity` must be at least 1"),
        ({"local": "x", "shuffle_seed": -1}, "`shuffle_seed` must be at least 0"),
        ({"local": "x", "batch_size": 0}, "`batch_size` must be at least 1"),
        ({"local": "x", "replication": 0}, "Replication factor must be positive"),
        ({"local": "x", "replication": 2}, "World size must be divisible"),
        ({"local": "x", "download_retry": -1}, "`download_retry` must be at least 0"),
        ({"local": "x", "download_timeout": 0}, "`download_timeout` must be greater than 0"),
        ({"local": "x", "validate_hash": "crc"}, "no known hash"),
        ({"remote": "gcs://b/x"}, "Unsupported remote path: gcs://b/x"),
        ({"remote": "oci://b/x", "local": "x"}, "not part of this project"),
        ({"local": "x", "stream_name": "odd"}, "'odd' is not in the registry"),
    ],
)
def test_bad_arguments(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StreamingDataset(**kwargs)


def test_unknown_arguments_and_signature(folder: str) -> None:
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'locale'"):
        StreamingDataset(local=folder, locale="x")  # type: ignore[call-arg]
    parameters = inspect.signature(StreamingDataset).parameters
    upstream = (
        "streams remote local split download_retry download_timeout validate_hash keep_zip "
        "epoch_size predownload cache_limit sampling_method sampling_granularity partition_algo "
        "num_canonical_nodes batch_size shuffle shuffle_algo shuffle_seed shuffle_block_size "
        "batching_method allow_unsafe_types replication stream_name stream_config"
    )
    assert set(upstream.split()) <= set(parameters)
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())


def test_missing_data(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="No `remote` provided, but local file .*index.json"):
        StreamingDataset(local=str(tmp_path))
    with pytest.raises(FileNotFoundError, match="has no file index.json"):
        StreamingDataset(remote=str(tmp_path / "none"), local=str(tmp_path / "cache"))
    (tmp_path / "index.json").write_text('{"version": 2, "shards": []}')
    with pytest.raises(RuntimeError, match="Stream contains no samples"):
        StreamingDataset(local=str(tmp_path))


def test_weights_that_do_not_go_together(folder: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="At most one of"):
        Stream(local=folder, repeat=1, choose=3)
    with pytest.raises(ValueError, match="`repeat` must be non-negative"):
        Stream(local=folder, repeat=-1)
    other = write_ids(tmp_path, 9)
    mixed = [Stream(local=folder, proportion=1), Stream(local=other, repeat=1)]
    with pytest.raises(ValueError, match=r"Relative .* incompatible .*\(error in stream 1\)"):
        StreamingDataset(streams=mixed)
    with pytest.raises(ValueError, match="Only provide `choose` when weighting streams relatively"):
        StreamingDataset(streams=[Stream(local=folder, choose=3)], epoch_size=5)
    with pytest.raises(ValueError, match="Epoch size cannot be negative"):
        StreamingDataset(local=folder, epoch_size=-3)
    with pytest.raises(ValueError, match="add up to 0"):
        StreamingDataset(streams=[Stream(local=folder, proportion=0)])
    with pytest.raises(ValueError, match="An epoch has no samples"):
        StreamingDataset(streams=[Stream(local=folder, choose=0)])
    assert StreamingDataset(local=folder, epoch_size="0.1k").epoch_size == 100


def test_arguments_that_have_no_effect_say_so_once(folder: str) -> None:
    plan_module._warned.clear()
    kwargs: dict[str, Any] = {"local": folder, "shuffle_algo": "py1s", "num_canonical_nodes": 64}
    with pytest.warns(UserWarning) as caught:
        StreamingDataset(**kwargs)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2 and "`shuffle_algo='py1s'`" in texts[0] and "64" in texts[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        StreamingDataset(**kwargs)
        StreamingDataset(order="mosaic", **kwargs)
    with pytest.warns(UserWarning, match="^predownload < batch_size"):
        StreamingDataset(local=folder, predownload=2, batch_size=4)


def test_batch_size_is_needed_to_iterate(folder: str) -> None:
    dataset = StreamingDataset(local=folder)
    with pytest.raises(ValueError, match="Please pass `batch_size` to StreamingDataset"):
        iter(dataset)


def test_epochs_differ_and_cover_everything(folder: str) -> None:
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    first, second = ([s["id"] for s in dataset] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(50)) and first != second
    plain = StreamingDataset(local=folder, batch_size=4)
    assert [s["id"] for s in plain] == [s["id"] for s in plain] == list(range(50))


@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
def test_unshuffled_epochs_are_equal(method: str, folder: str, tmp_path: Path) -> None:
    other = write_ids(tmp_path, 30, first=1000)
    dataset = StreamingDataset(
        streams=[Stream(local=folder), Stream(local=other)], batching_method=method, batch_size=5
    )
    first = [s["id"] for s in dataset]
    assert sorted(first) == sorted({*range(50), *range(1000, 1030)}) and len(dataset) == 80
    if method in ("random", "stratified"):
        assert first == [s["id"] for s in dataset]


@pytest.mark.parametrize(
    ("start", "persistent"),
    [
        ("fork", False),
        ("fork", True),
        ("spawn", True),
        pytest.param("spawn", False, marks=pytest.mark.slow),
    ],
)
def test_plain_loaders_with_workers(start: str, persistent: bool, folder: str) -> None:
    expected = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    want = [epoch(DataLoader(expected, batch_size=4)) for _ in range(4)]
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    loader: Any = DataLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        persistent_workers=persistent,
        multiprocessing_context=start,
    )
    assert len(loader) == 13
    torch.manual_seed(1)
    assert epoch(loader) == want[0]
    torch.manual_seed(1)  # The same seed of workers again: still the next epoch.
    assert epoch(loader) == want[1]
    assert dataset.next_epoch == 2
    assert dataset.state_dict(12, True)["epoch"] == 1
    dataset.load_state_dict({**dataset.state_dict(12, True), "epoch": 0})
    assert epoch(loader) == want[0][3:]
    assert epoch(loader) == want[1]
    dataset.next_epoch = 3
    assert epoch(loader) == want[3]


def test_worker_counts_may_change_between_epochs(folder: str) -> None:
    expected = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    want = [epoch(DataLoader(expected, batch_size=4)) for _ in range(5)]
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    for number, workers in enumerate((0, 2, 1, 0, 3)):
        assert epoch(DataLoader(dataset, batch_size=4, num_workers=workers)) == want[number]


def test_an_abandoned_epoch_is_over(folder: str) -> None:
    expected = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    want = [epoch(DataLoader(expected, batch_size=4)) for _ in range(3)]
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    loader: Any = DataLoader(dataset, batch_size=4, num_workers=2)
    for _ in range(2):
        iterator = iter(loader)
        next(iterator)
        del iterator
    assert epoch(loader) == want[2]


def test_subclasses_change_samples(folder: str) -> None:
    dataset = Square(local=folder, batch_size=4)
    assert list(dataset) == [number**2 for number in range(50)]
    got = [batch.tolist() for batch in DataLoader(dataset, batch_size=4, num_workers=2)]
    assert got[1] == [16, 25, 36, 49]


def test_states(folder: str) -> None:
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    fresh = dataset.state_dict(0, False)
    assert (fresh["epoch"], fresh["sample_in_epoch"]) == (0, 0)
    whole = [s["id"] for s in dataset] + [s["id"] for s in dataset]
    state = json.loads(json.dumps(dataset.state_dict(10, True)))
    assert (state["epoch"], state["sample_in_epoch"]) == (1, 10)
    other = StreamingDataset(local=folder, shuffle=True, batch_size=4, shuffle_seed=3)
    other.load_state_dict(state)
    assert other.shuffle_seed == 9176
    assert other.state_dict(0, False) == state  # Round trip before anything ran.
    iterator = iter(other)
    assert [next(iterator)["id"] for _ in range(4)] == whole[60:64]
    second = other.state_dict(4, False)
    assert second["sample_in_epoch"] == 14 and other.state_dict(14, True) == second
    third = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    third.load_state_dict(second)
    assert [s["id"] for s in third] == whole[64:]
    third.load_state_dict(state)  # Going back in a process that runs works as well.
    assert [s["id"] for s in third] == whole[60:]
    third.load_state_dict({**state, "epoch": -1})
    assert third.next_epoch == 2


def test_copies_count_for_themselves(folder: str) -> None:
    dataset = StreamingDataset(local=folder, batch_size=4)
    list(dataset)
    for twin in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert twin.next_epoch == 1
        list(twin)
        assert twin.next_epoch == 2 and dataset.next_epoch == 1


def test_units_floor_a_resumed_run(folder: str) -> None:
    plan_module._warned.clear()
    dataset = StreamingDataset(local=folder, batch_size=4, batching_method="per_stream")
    dataset.load_state_dict(dataset.state_dict(10, True))
    with pytest.warns(UserWarning, match="can only begin at a whole one, so the run goes on at"):
        got = [s["id"] for s in dataset]
    assert len(got) == 48 - 8


def test_own_stream_classes(folder: str) -> None:
    class Doubled(Stream):
        def __init__(self, *, factor: float, **kwargs: Any) -> None:
            super().__init__(repeat=factor, **kwargs)

    streams_registry.register("doubled", func=Doubled)
    config = {"factor": 2.0}
    dataset = StreamingDataset(local=folder, stream_name="doubled", stream_config=config)
    assert dataset.epoch_size == 100 and config == {"factor": 2.0}


def test_tiny_data(tmp_path: Path) -> None:
    folder = write_ids(tmp_path, 3)
    seen: list[int] = []
    for rank in range(2):
        with world(rank, 2):
            dataset = StreamingDataset(local=folder, batch_size=8)
        batches = epoch(DataLoader(dataset, batch_size=8))
        assert len(batches) == 1
        seen += batches[0]
    assert sorted(seen) == [0, 1, 2]


def _epochs_of_rank(folder: str, workers: int) -> tuple[list[list[list[int]]], dict[str, Any]]:
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=4)
    loader = DataLoader(dataset, batch_size=4, num_workers=workers)
    return [epoch(loader) for _ in range(2)], dataset.state_dict(8, True)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_two_processes(workers: int, folder: str) -> None:
    single = StreamingDataset(local=folder, shuffle=True, batch_size=8)
    want = [epoch(DataLoader(single, batch_size=8)) for _ in range(2)]
    (first, state), (second, other) = run_ranks(_epochs_of_rank, 2, folder, workers)
    assert state == other
    for mine, theirs, whole in zip(first, second, want, strict=True):
        assert [a + b for a, b in zip(mine, theirs, strict=True)] == whole
