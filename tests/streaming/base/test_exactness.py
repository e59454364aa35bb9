"""The promise: the same samples in the same global batches, whoever loads, however often stopped.

Every cell stops a run in the middle of a shard and goes on under another number of ranks, workers
or another batch size; what is compared is the ids of global batches with those of the run that was
never stopped and never changed. A further kind of dataset is a further entry of ``KINDS``.
"""

import itertools
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmfoundry.data.packed_dataset import PackedDataset
from llmfoundry.data.packing_index import Packing
from streaming import Stream, StreamingDataLoader, StreamingDataset
from tests.launch import run_ranks
from tests.streaming.shards import ids_of, world, write_ids

Folders = tuple[str, str]
Build = Callable[..., StreamingDataset]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    folder = tmp_path_factory.mktemp("data")
    return write_ids(folder, 205), write_ids(folder, 75, first=1000)


def one(folders: Folders, **kwargs: Any) -> StreamingDataset:
    """The dataset of one stream."""
    return StreamingDataset(local=folders[0], shuffle=True, shuffle_seed=5, **kwargs)


def remote(limit: int | None) -> Build:
    """How the same is built from a store, through a cache that all runs share."""

    def build(folders: Folders, **kwargs: Any) -> StreamingDataset:
        cache: dict[str, Any] = {"local": f"{folders[0]}-{limit}", "cache_limit": limit}
        return StreamingDataset(remote=folders[0], shuffle=True, shuffle_seed=5, **cache, **kwargs)

    return build


def mixed(weight: str, first: float, second: float, **settings: Any) -> Build:
    """How a dataset of two weighted streams is built."""

    def build(folders: Folders, **kwargs: Any) -> StreamingDataset:
        pairs = zip(folders, (first, second), strict=True)
        weighted: list[tuple[str, Any]] = [(folder, {weight: value}) for folder, value in pairs]
        streams = [Stream(local=folder, **weights) for folder, weights in weighted]
        common: dict[str, Any] = {"shuffle": True, "shuffle_seed": 5} | settings
        return StreamingDataset(streams=streams, **common, **kwargs)

    return build


def packed(folders: Folders, **kwargs: Any) -> StreamingDataset:
    """Two streams of samples of 1 to 5 tokens, packed into rows that go by their first sample."""
    streams = [Stream(local=folders[0], repeat=2), Stream(local=folders[1], repeat=1.3)]
    packing = Packing(6, padding_id=0, long_rows="cut", window=30, reader="ids")
    return PackedIds(
        packing=packing, row_of=tokens_of, streams=streams, shuffle=True, shuffle_seed=5, **kwargs
    )


def tokens_of(sample: dict[str, int]) -> dict[str, Any]:
    return {"input_ids": [sample["id"]] * (sample["id"] % 5 + 1)}


class PackedIds(PackedDataset):
    """Packed rows, told by the id of their first sample."""

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, Any]:
        return {"id": super().get_item(sample_id, retry)["input_ids"][0]}


KINDS: dict[str, Build] = {
    "one": one,
    "remote": remote(None),
    "repeat": mixed("repeat", 0.7, 1.6),
    "proportion": mixed("proportion", 0.25, 0.75),
    "choose": mixed("choose", 90, 40, sampling_granularity=3),
    "fixed": mixed("repeat", 0.7, 2.5, sampling_method="fixed", shuffle_block_size=20),
    "unshuffled": mixed("choose", 90, 40, shuffle=False),
    "stratified": mixed("proportion", 0.25, 0.75, batching_method="stratified"),
    "per_stream": mixed("repeat", 1, 2, batching_method="per_stream"),
    "device_per_stream": mixed("choose", 96, 48, batching_method="device_per_stream"),
    "packed": packed,
}
DEVICE_BATCH = {"device_per_stream": 4}  # whose order depends on it
ANY_RANKS = [kind for kind in KINDS if kind not in DEVICE_BATCH]
REST_SLOW = [
    kind if kind in ("repeat", "packed") else pytest.param(kind, marks=pytest.mark.slow)
    for kind in ANY_RANKS
]
ANY_BATCH = [kind for kind in ANY_RANKS if kind != "per_stream"]  # whose batches are its units


class Run:
    """A run of several ranks, each in its own loader, as one process sees them all."""

    def __init__(
        self, build: Build, folders: Folders, ranks: int, workers: int = 0, size: int = 16
    ) -> None:
        self.loaders, self.datasets = [], []
        for rank in range(ranks):
            with world(rank, ranks):
                dataset = build(folders, batch_size=size // ranks)
            self.datasets.append(dataset)
            self.loaders.append(
                StreamingDataLoader(dataset, batch_size=size // ranks, num_workers=workers)
            )

    def take(self, count: int | None = None) -> list[list[int]]:
        """The next global batches, ranks in order, without what is repeated for a rank's sake."""
        iterators = [iter(loader) for loader in self.loaders]
        out: list[list[int]] = []
        taken = 0
        while count is None or len(out) < count:
            parts = [next(iterator, None) for iterator in iterators]
            if parts[0] is None:
                assert parts == [None] * len(parts)
                break
            batch: list[int] = []
            for part, dataset in zip(parts, self.datasets, strict=True):
                own = dataset.own_samples
                batch += ids_of(part)[: None if own is None else max(0, own - taken)]
            taken += self.loaders[0].batch_size or 0
            out.append(batch)
        return out

    def state(self) -> dict[str, Any]:
        """The state, which must be the same on all ranks, and small."""
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        assert states[0] is not None and len(json.dumps(states[0])) < 256
        return states[0]

    def load(self, state: dict[str, Any]) -> "Run":
        for loader in self.loaders:
            loader.load_state_dict(state)
        return self


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def unbroken(kind: str, folders: Folders, size: int = 16, epochs: int = 1) -> list[list[int]]:
    run = Run(KINDS[kind], folders, 1, size=size)
    return [batch for _ in range(epochs) for batch in run.take()]


@pytest.mark.parametrize("kind", ANY_RANKS)
@pytest.mark.parametrize(("before", "after"), [*itertools.permutations((1, 2, 4), 2)])
def test_other_world_size(kind: str, before: int, after: int, folders: Folders) -> None:
    """B41: and back again, over the edge of the epoch."""
    whole = unbroken(kind, folders, epochs=2)
    first = Run(KINDS[kind], folders, before)
    assert first.take(3) == whole[:3]
    second = Run(KINDS[kind], folders, after).load(first.state())
    assert second.take(2) == whole[3:5]
    third = Run(KINDS[kind], folders, before).load(second.state())
    assert third.take() + third.take() == whole[5:]


@pytest.mark.parametrize("kind", ["repeat", "packed"])  # The matrix below has the others.
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 4), (4, 0)])
def test_other_worker_count(kind: str, before: int, after: int, folders: Folders) -> None:
    whole = unbroken(kind, folders)
    run = Run(KINDS[kind], folders, 1, before)
    assert run.take(3) == whole[:3]
    assert Run(KINDS[kind], folders, 1, after).load(run.state()).take() == whole[3:]


@pytest.mark.parametrize("kind", ANY_BATCH)
@pytest.mark.parametrize(("before", "after"), [(16, 32), (32, 16), (16, 8)])
def test_other_batch_size(kind: str, before: int, after: int, folders: Folders) -> None:
    whole = flat(unbroken(kind, folders))
    run = Run(KINDS[kind], folders, 2, size=before)
    head = flat(run.take(3))
    run = Run(KINDS[kind], folders, 1, size=after).load(run.state())
    assert head + flat(run.take()) == whole


def walk(kind: str, folders: Folders, stops: list[tuple[int, int, int, int]]) -> None:
    """Resumes again and again, each time with other ranks, workers, size of batches, and length."""
    got: list[int] = []
    state: dict[str, Any] | None = None
    for ranks, workers, size, count in stops:
        run = Run(KINDS[kind], folders, ranks, workers, size)
        if state is not None:
            run.load(state)
        got += flat(run.take(count))
        state = run.state()
    size = DEVICE_BATCH.get(kind, stops[0][2])
    assert got == flat(unbroken(kind, folders, size, epochs=len(stops)))[: len(got)]


@pytest.mark.parametrize("stops", [((1, 3), (4, 2), (1, 2)), ((4, 1), (2, 1), (4, 9), (2, 2))])
def test_device_batches_of_one_stream_under_other_ranks(
    stops: tuple[tuple[int, int], ...], folders: Folders
) -> None:
    walk("device_per_stream", folders, [(r, 0, 4 * r, count) for r, count in stops])


@pytest.mark.parametrize("kind", ["proportion", "stratified"])
def test_everything_changes_at_once_and_again(kind: str, folders: Folders) -> None:
    walk(kind, folders, [(2, 2, 16, 3), (1, 0, 32, 2), (4, 0, 16, 4), (2, 2, 32, 9), (1, 0, 8, 3)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_matrix(kind: str, folders: Folders) -> None:
    """Every number of ranks, workers and size of batches twice, in one long run."""
    sizes = (16, 32) if kind in ANY_BATCH else (16,)
    cells = [*itertools.product((1, 2, 4), (0, 2, 4), sizes)] * 2
    draw = random.Random(kind)
    draw.shuffle(cells)
    device = DEVICE_BATCH.get(kind)
    stops = [(r, w, r * device if device else size) for r, w, size in cells]
    walk(kind, folders, [(*stop, draw.randint(1, 4)) for stop in stops])


def test_a_cache_that_holds_not_all(folders: Folders) -> None:
    whole = unbroken("one", folders)
    first = Run(remote(13_000), folders, 2)  # Index and shards take 15,476 bytes.
    assert first.take(3) == whole[:3]
    assert Run(remote(13_000), folders, 1, 2).load(first.state()).take() == whole[3:]


def test_the_edge_of_an_epoch(folders: Folders) -> None:
    whole = unbroken("one", folders, epochs=3)
    run = Run(one, folders, 2)
    assert run.take() == whole[:13]
    state = run.state()
    assert (state["epoch"], state["sample_in_epoch"]) == (0, 205)
    later = Run(one, folders, 1).load(state)
    assert later.take() == []  # The rest of epoch 0.
    assert later.state() == state
    assert later.take() + later.take() == whole[13:]


def test_replicas_get_the_same(folders: Folders) -> None:
    whole = Run(one, folders, 2).take()
    by_rank = []
    for rank in range(4):
        with world(rank, 4):
            dataset = one(folders, batch_size=8, replication=2)
        by_rank.append([ids_of(b) for b in StreamingDataLoader(dataset, batch_size=8)])
    assert by_rank[0] == by_rank[1] and by_rank[2] == by_rank[3]
    merged = [a + b for a, b in zip(by_rank[0], by_rank[2], strict=True)]
    assert merged == whole


def go_on_until_killed(
    kind: str, folders: Folders, rank: int, ranks: int, workers: int, file: Path, state: Any
) -> None:
    """One rank that notes after each batch what it has seen and where it stands."""
    with world(rank, ranks):
        dataset = KINDS[kind](folders, batch_size=16 // ranks)
    loader = StreamingDataLoader(dataset, batch_size=16 // ranks, num_workers=workers)
    if state is not None:
        loader.load_state_dict(state)
    seen: list[list[int]] = []
    while True:
        for batch in loader:
            seen.append(ids_of(batch))
            file.with_suffix(".part").write_text(json.dumps([seen, loader.state_dict()]))
            file.with_suffix(".part").rename(file)
            time.sleep(0.005)


def noted(file: Path) -> list[Any]:
    return json.loads(file.read_text()) if file.exists() else [[], None]


@pytest.mark.parametrize("kind", REST_SLOW)
def test_killed_in_the_middle_of_a_shard_and_resumed_by_others(
    kind: str, folders: Folders, tmp_path: Path
) -> None:
    whole = unbroken(kind, folders, epochs=12)
    done, state = 0, None
    for number, (ranks, workers) in enumerate(((2, 2), (1, 0), (4, 0))):
        files = [tmp_path / f"{number}-{rank}" for rank in range(ranks)]
        processes = [
            multiprocessing.get_context("fork").Process(
                target=go_on_until_killed,
                args=(kind, folders, rank, ranks, workers, file, state),
            )
            for rank, file in enumerate(files)
        ]
        for process in processes:
            process.start()
        while min(len(noted(file)[0]) for file in files) < 5 + number:
            assert all(process.is_alive() for process in processes)
            time.sleep(0.01)
        for process in processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        for process in processes:
            process.join()
            assert process.exitcode == -signal.SIGKILL
        # A checkpoint is of all ranks: the last state that all have come to.
        seen, state = min((noted(file) for file in files), key=lambda note: len(note[0]))
        parts = [noted(file)[0][: len(seen)] for file in files]
        merged = [flat(list(batch)) for batch in zip(*parts, strict=True)]
        for got, want in zip(merged, whole[done:], strict=False):
            assert got == want or set(got) == set(want) and len(want) < 16
        done += len(seen)
    per_epoch = len(whole) // 12
    run = Run(KINDS[kind], folders, 2, 2).load(state or {})
    assert run.take() + run.take() == whole[done : done + -done % per_epoch + per_epoch]


def _goes_on(kind: str, folders: Folders, state: dict[str, Any]) -> tuple[list[list[int]], Any]:
    dataset = KINDS[kind](folders, batch_size=8)
    loader = StreamingDataLoader(dataset, batch_size=8)
    loader.load_state_dict(state)
    batches = [ids_of(batch) for _, batch in zip(range(4), loader, strict=False)]
    return batches, loader.state_dict()


def test_two_processes_go_on(folders: Folders) -> None:
    kind = "proportion"
    whole = unbroken(kind, folders)
    run = Run(KINDS[kind], folders, 1)
    run.take(3)
    (first, state), (second, other) = run_ranks(_goes_on, 2, kind, folders, run.state())
    assert [a + b for a, b in zip(first, second, strict=True)] == whole[3:7]
    assert state == other
    assert Run(KINDS[kind], folders, 4).load(state).take() == whole[7:]
