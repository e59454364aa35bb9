"""StreamingDataLoader: how far it has come, and what it agrees on with the dataset."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from streaming import StreamingDataLoader, StreamingDataset
from tests.streaming.shards import ids_of, world, write_ids


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_ids(tmp_path_factory.mktemp("data"), 50)


def build(folder: str, workers: int = 0, **kwargs: Any) -> StreamingDataLoader:
    dataset = StreamingDataset(local=folder, shuffle=True)
    settings: dict[str, Any] = {"batch_size": 4, "num_workers": workers, **kwargs}
    return StreamingDataLoader(dataset, **settings)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_stopping_and_going_on(workers: int, persistent: bool, folder: str) -> None:
    persistent = persistent and workers > 0
    whole = [ids_of(batch) for loader in [build(folder)] for _ in range(2) for batch in loader]
    loader = build(folder, workers, persistent_workers=persistent)
    iterator = iter(loader)
    got = [ids_of(next(iterator)) for _ in range(5)]
    state = loader.state_dict()
    assert state is not None and state["sample_in_epoch"] == 20
    other = build(folder, workers, persistent_workers=persistent)
    other.load_state_dict(state)
    assert other.state_dict() == state
    iterator = iter(other)
    got += [ids_of(next(iterator)) for _ in range(3)]
    state = other.state_dict()
    # Back in the loader that has run already, which may have workers that go on living.
    loader.load_state_dict(state or {})
    got += [ids_of(batch) for batch in loader]
    got += [ids_of(batch) for batch in loader]
    assert got == whole
    state = loader.state_dict()
    assert state is not None and (state["epoch"], state["sample_in_epoch"]) == (1, 50)


def test_packing_collators_do_not_mislead_it(folder: str) -> None:
    loader = build(folder, collate_fn=lambda samples: {"packed": torch.zeros(1, 3)})
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    assert state is not None and state["sample_in_epoch"] == 8


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_drop_last_leaves_the_same_out_on_all_ranks(ranks: int, folder: str) -> None:
    batches, length = [], 0
    for rank in range(ranks):
        with world(rank, ranks):
            loader = build(folder, drop_last=True, batch_size=3)
            batches.append([ids_of(batch) for batch in loader])
            length = len(loader)
    assert {len(mine) for mine in batches} == {50 // (3 * ranks)}
    assert length in (len(batches[0]), len(batches[0]) + 1)
    merged = [number for mine in batches for batch in mine for number in batch]
    assert len(set(merged)) == len(merged) == 50 // (3 * ranks) * 3 * ranks


def test_too_little_for_a_batch(tmp_path: Path) -> None:
    folder = write_ids(tmp_path, 3)
    with pytest.raises(ValueError, match="a rank gets 3 samples.*less than its batch of 8"):
        build(folder, batch_size=8, drop_last=True)
    assert [sorted(ids_of(batch)) for batch in build(folder, batch_size=8)] == [[0, 1, 2]]


def test_batch_sizes_must_agree(folder: str) -> None:
    assert build(folder).dataset.batch_size == 4  # type: ignore[attr-defined]
    dataset = StreamingDataset(local=folder, batch_size=4)
    with pytest.raises(ValueError, match="loader's batch_size is 8, but the dataset's is 4"):
        StreamingDataLoader(dataset, batch_size=8)


def test_without_batches(folder: str) -> None:
    dataset = StreamingDataset(local=folder, batch_size=4)
    loader = StreamingDataLoader(dataset, batch_size=None)
    iterator = iter(loader)
    assert [next(iterator)["id"] for _ in range(6)] == list(range(6))
    state = loader.state_dict()
    assert state is not None and state["sample_in_epoch"] == 6


def test_other_datasets_have_no_state() -> None:
    loader = StreamingDataLoader(TensorDataset(torch.arange(6)), batch_size=2)
    assert len(list(loader)) == 3 and loader.state_dict() is None
    loader.load_state_dict({})
