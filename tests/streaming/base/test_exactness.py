"""The promise: the same samples in the same global batches, whoever loads, however often stopped.

Every cell stops a run in the middle of a shard and goes on under another number of ranks, workers
or another batch size; what is compared is the ids of global batches with those of the run that was
never stopped and never changed.
"""

from collections.abc import Callable
from typing import Any

import pytest

from streaming import Stream, StreamingDataLoader, StreamingDataset
from tests.streaming.shards import ids_of, world, write_ids

GLOBAL_BATCH = 16
Build = Callable[[], dict[str, Any]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("data")
    return write_ids(folder, 205), write_ids(folder, 75, first=1000)


def source(folders: tuple[str, str], kind: str) -> dict[str, Any]:
    if kind == "one":
        return {"local": folders[0]}
    weights = {"repeat": (0.7, 1.6), "proportion": (0.25, 0.75), "choose": (90, 40)}
    name = kind.removesuffix("_woven")
    streams = [
        Stream(local=folder, **{name: weight})
        for folder, weight in zip(folders, weights[name], strict=True)
    ]
    batching = "stratified" if kind.endswith("_woven") else "random"
    return {"streams": streams, "batching_method": batching}


KINDS = ["one", "repeat", "proportion", "choose", "proportion_woven"]


class Run:
    """A run of several ranks, each in its own loader, as one process sees them all."""

    def __init__(
        self, kwargs: dict[str, Any], ranks: int, workers: int = 0, size: int = GLOBAL_BATCH
    ) -> None:
        self.loaders = []
        for rank in range(ranks):
            with world(rank, ranks):
                dataset = StreamingDataset(
                    shuffle=True, shuffle_seed=5, batch_size=size // ranks, **kwargs
                )
            self.loaders.append(
                StreamingDataLoader(dataset, batch_size=size // ranks, num_workers=workers)
            )

    def take(self, count: int | None = None) -> list[list[int]]:
        """The next global batches, ranks in order."""
        iterators = [iter(loader) for loader in self.loaders]
        out: list[list[int]] = []
        while count is None or len(out) < count:
            parts = [next(iterator, None) for iterator in iterators]
            if parts[0] is None:
                assert parts == [None] * len(parts)
                break
            out.append([number for part in parts for number in ids_of(part)])
        return out

    def state(self) -> dict[str, Any]:
        """The state, which must be the same on all ranks, and small."""
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        assert states[0] is not None and len(str(states[0])) < 200
        return states[0]

    def load(self, state: dict[str, Any]) -> None:
        for loader in self.loaders:
            loader.load_state_dict(state)


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (4, 1), (2, 2)])
def test_other_world_size(kind: str, before: int, after: int, folders: tuple[str, str]) -> None:
    whole = Run(source(folders, kind), 1)
    first, second = whole.take(), whole.take()
    run = Run(source(folders, kind), before)
    assert run.take(3) == first[:3]
    state = run.state()
    run = Run(source(folders, kind), after)
    run.load(state)
    assert run.take(2) == first[3:5]
    state = run.state()
    run = Run(source(folders, kind), before)
    run.load(state)
    rest = run.take()
    assert rest[:-1] == first[5:-1] and set(rest[-1]) == set(first[-1])
    assert run.take(4) == second[:4]


@pytest.mark.parametrize("kind", ["one", "repeat"])
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 4), (4, 0)])
def test_other_worker_count(kind: str, before: int, after: int, folders: tuple[str, str]) -> None:
    whole = Run(source(folders, kind), 1).take()
    run = Run(source(folders, kind), 1, before)
    assert run.take(3) == whole[:3]
    state = run.state()
    run = Run(source(folders, kind), 1, after)
    run.load(state)
    assert run.take() == whole[3:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), [(16, 32), (32, 16), (16, 8)])
def test_other_batch_size(kind: str, before: int, after: int, folders: tuple[str, str]) -> None:
    whole = flat(Run(source(folders, kind), 1).take())
    run = Run(source(folders, kind), 2, size=before)
    head = flat(run.take(2))
    state = run.state()
    run = Run(source(folders, kind), 1, size=after)
    run.load(state)
    assert head + flat(run.take()) == whole


def test_everything_changes_at_once_and_again(folders: tuple[str, str]) -> None:
    kwargs = lambda: source(folders, "proportion")
    whole = Run(kwargs(), 1)
    expected = flat(whole.take()) + flat(whole.take())
    got: list[int] = []
    state: dict[str, Any] | None = None
    for ranks, workers, size, count in ((2, 2, 16, 3), (1, 0, 32, 2), (4, 0, 16, 4), (2, 0, 8, 2)):
        run = Run(kwargs(), ranks, workers, size)
        if state is not None:
            run.load(state)
        got += flat(run.take(count))
        state = run.state()
    assert state is not None
    run = Run(kwargs(), 1, 2, 40)
    run.load(state)
    got += flat(run.take()) + flat(run.take())
    assert got == expected


def test_the_edge_of_an_epoch(folders: tuple[str, str]) -> None:
    whole = Run(source(folders, "one"), 1)
    first, second, third = whole.take(), whole.take(), whole.take()
    run = Run(source(folders, "one"), 2)
    assert len(run.take()) == len(first)
    state = run.state()
    assert (state["epoch"], state["sample_in_epoch"]) == (0, 205)
    later = Run(source(folders, "one"), 1)
    later.load(state)
    assert later.take() == []  # The rest of epoch 0.
    assert later.state() == state
    assert later.take() == second
    assert later.take() == third


def test_replicas_get_the_same(folders: tuple[str, str]) -> None:
    whole = Run(source(folders, "one"), 2).take()
    by_rank = []
    for rank in range(4):
        with world(rank, 4):
            dataset = StreamingDataset(
                local=folders[0], shuffle=True, shuffle_seed=5, batch_size=8, replication=2
            )
        by_rank.append([ids_of(b) for b in StreamingDataLoader(dataset, batch_size=8)])
    assert by_rank[0] == by_rank[1] and by_rank[2] == by_rank[3]
    merged = [a + b for a, b in zip(by_rank[0], by_rank[2], strict=True)]
    assert merged == whole
