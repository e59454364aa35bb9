"""A run over a StreamingDataset that was stopped and resumed equals the unbroken run (B33-B41)."""

import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.intervals import create_interval_scheduler
from composer.core.logger import Logger
from composer.core.state import State
from composer.models.base import ComposerModel
from composer.optim.schedules import LinearScheduler
from composer.trainer.trainer import Trainer
from composer.utils import dist
from streaming import StreamingDataLoader, StreamingDataset
from tests.launch import run_ranks
from tests.streaming.shards import ids_of, write_ids

SAMPLES, BATCH, BATCHES = 24, 4, 12  # 2 epochs of 6 batches
LOADERS = {"torch": DataLoader, "streaming": StreamingDataLoader}


class Reader(ComposerModel):
    """Notes the ids of every batch, and draws random numbers in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.seen.append(ids_of(batch))
        return self.linear(torch.nn.functional.dropout(batch["id"].float()[:, None] / 24, 0.1))

    def loss(self, outputs: Any, batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return outputs.square().mean()


def loader(folder: str, kind: str = "torch", workers: int = 0, size: int = BATCH) -> DataLoader:
    size //= dist.get_world_size()
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=size, shuffle_seed=3)
    return LOADERS[kind](dataset, batch_size=size, num_workers=workers)


def make(data: DataLoader | None, **kwargs: Any) -> tuple[Trainer, Reader]:
    torch.manual_seed(5)
    model = Reader()
    settings: dict[str, Any] = {"max_duration": f"{BATCHES}ba", "save_interval": "1ba"} | kwargs
    trainer = Trainer(
        model=model,
        train_dataloader=data,
        optimizers=torch.optim.Adam(model.parameters(), 0.01),
        run_name="run",
        device="cpu",
        progress_bar=False,
        seed=1,
        **settings,
    )
    return trainer, model


def run(data: DataLoader, **kwargs: Any) -> Reader:
    trainer, model = make(data, **kwargs)
    try:
        trainer.fit()
    finally:
        trainer.close()
    return model


def checkpoint_at(folder: str | Path, batch: int) -> str:
    (found,) = (path for path in Path(folder).glob("ep*") if f"-ba{batch}-" in f"{path.name}-")
    return str(found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_ids(tmp_path_factory.mktemp("data"), SAMPLES)


@pytest.mark.parametrize("kind", ["torch", "streaming"])
@pytest.mark.parametrize(("workers", "stops"), [(0, range(1, BATCHES)), (2, (6, 9))])
def test_b33_b34_b38_resumed_anywhere_equals_the_unbroken_run(
    kind: str, workers: int, stops: Any, folder: str, tmp_path: Path
) -> None:
    whole = run(loader(folder, kind, workers), save_folder=str(tmp_path))
    for stop in stops:  # 6 is the last batch of an epoch
        rest = run(loader(folder, kind, workers), load_path=checkpoint_at(tmp_path, stop))
        assert rest.seen == whole.seen[stop:], stop
        assert torch.equal(rest.linear.weight, whole.linear.weight), stop


def test_b35_b38_resumed_twice_and_by_other_workers(folder: str, tmp_path: Path) -> None:
    whole = run(loader(folder))
    seen: list[list[int]] = []
    for end, workers in ((3, 0), (8, 2), (BATCHES, 0)):
        how: dict[str, Any] = {"save_folder": str(tmp_path), "autoresume": True}
        seen += run(loader(folder, "torch", workers), max_duration=f"{end}ba", **how).seen
    assert seen == whole.seen


@pytest.mark.parametrize("stop", [2, 6, 8])
def test_b39_the_loader_that_is_given_to_fit_takes_the_position(
    stop: int, folder: str, tmp_path: Path
) -> None:
    whole = run(loader(folder), save_folder=str(tmp_path))
    for first in (None, loader(folder)):
        trainer, model = make(first, load_path=checkpoint_at(tmp_path, stop))
        trainer.fit(train_dataloader=loader(folder))
        trainer.close()
        assert model.seen == whole.seen[stop:]


def _on_ranks(folder: str, sharded: bool, **kwargs: Any) -> list[list[int]]:
    """Returns the ids of each batch over all ranks."""
    warnings.filterwarnings("ignore", message="The checkpoint has the random states of")
    config = {"fsdp2": {"state_dict_type": "sharded"}} if sharded else None
    model = run(loader(folder, "streaming", size=8), parallelism_config=config, **kwargs)
    return [sorted(sum(parts, [])) for parts in zip(*dist.all_gather_object(model.seen))]


def _both_ways(folder: str, saves: str) -> list[list[int]]:
    whole = _on_ranks(folder, False, save_folder=f"{saves}/files", max_duration="6ba")
    assert whole == _on_ranks(folder, True, save_folder=f"{saves}/shards", max_duration="6ba")
    return whole


def _from_both(folder: str, saves: str, stop: int) -> list[list[list[int]]]:
    paths = [(kind, checkpoint_at(f"{saves}/{kind}", stop)) for kind in ("files", "shards")]
    return [
        _on_ranks(folder, kind == "shards", load_path=path, max_duration="6ba")
        for kind, path in paths
    ]


@pytest.fixture(scope="module")
def saved(folder: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A run on two ranks, saved to files and to shards."""
    saves = tmp_path_factory.mktemp("saves")
    return saves, run_ranks(_both_ways, 2, folder, str(saves))[0]


@pytest.mark.filterwarnings("ignore:The checkpoint has the random states of 2 ranks")
@pytest.mark.parametrize("ranks", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_b41_another_number_of_ranks_sees_the_same_global_batches(
    ranks: int, folder: str, saved: tuple[Path, list[list[int]]]
) -> None:
    saves, whole = saved
    assert sorted(sum(whole[:3], [])) == sorted(sum(whole[3:], [])) == list(range(SAMPLES))
    for stop in (2, 3, 5) if ranks == 1 else (2,):
        args = (folder, str(saves), stop)
        told = [_from_both(*args)] if ranks == 1 else run_ranks(_from_both, ranks, *args)
        assert all(one == [whole[stop:]] * 2 for one in told)


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def counters(trainer: Trainer) -> tuple[int, int, int]:
    """Epochs, samples and batches."""
    now = trainer.state.timestamp
    return int(now.epoch), int(now.sample), int(now.batch)


@pytest.mark.parametrize(("size", "duration"), [(8, "2ep"), (16, "2ep"), (5, "2ep"), (5, "48sp")])
def test_another_global_batch_goes_on_after_the_same_sample(
    size: int, duration: str, folder: str, tmp_path: Path
) -> None:
    whole = run(loader(folder), save_folder=str(tmp_path / "saves")).seen
    for stop in (2, 3, 6, 11):
        how = {"max_duration": duration, "save_folder": str(tmp_path / f"{size}-{stop}")}
        path = checkpoint_at(tmp_path / "saves", stop)
        trainer, model = make(loader(folder, size=size), load_path=path, **how)
        trainer.fit()
        trainer.close()
        assert flat(model.seen) == flat(whole[stop:]), stop
        assert counters(trainer) == (2, 2 * SAMPLES, stop + len(model.seen))
        # And once more, with batches of the first size again.
        path = checkpoint_at(how["save_folder"], stop + 1)
        trainer, third = make(loader(folder), load_path=path, max_duration=duration)
        if counters(trainer)[1] < 2 * SAMPLES:
            trainer.fit()
            assert counters(trainer)[:2] == (2, 2 * SAMPLES)
        trainer.close()
        assert flat(third.seen) == flat(model.seen[1:]), stop


class Rates(Callback):
    """Notes the learning rate of each batch, and the samples before it."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def batch_start(self, state: State, logger: Logger) -> None:
        rate = state.optimizers[0].param_groups[0]["lr"]
        self.seen.append((int(state.timestamp.sample), rate))


@pytest.mark.parametrize(("size", "stop"), [(8, 2), (8, 6), (2, 8)])
def test_schedules_in_epochs_keep_their_place_under_another_global_batch(
    size: int, stop: int, folder: str, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"max_duration": "2ep", "schedulers": LinearScheduler()}
    run(loader(folder), save_folder=str(tmp_path), callbacks=Rates(), **how)
    path = checkpoint_at(tmp_path, stop)
    for number in (1, 2):  # The second time with batches of the same size as the first.
        rates, saves = Rates(), tmp_path / str(number)
        run(
            loader(folder, size=size),
            load_path=path,
            callbacks=rates,
            save_folder=str(saves),
            **how,
        )
        # Schedulers step before the clock does, so that a batch has the rate of the one before it.
        for (samples, _), (_, rate) in itertools.pairwise(rates.seen):
            assert rate == pytest.approx(0.01 * (1 - samples / (2 * SAMPLES))), samples
        path = checkpoint_at(saves, stop + number)


class Moments(Callback):
    """Notes at which batches a part of the run is over, and the last of an epoch that is known."""

    def __init__(self, interval: str) -> None:
        self.is_due = create_interval_scheduler(interval)
        self.due: list[int] = []
        self.last: list[int] = []

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        if self.is_due(state, Event.BATCH_CHECKPOINT):
            self.due.append(int(state.timestamp.batch))
        if int(state.timestamp.batch_in_epoch) == state.epoch_length:
            self.last.append(int(state.timestamp.batch))


def test_parts_of_a_run_of_epochs_count_batches_of_the_present_size(
    folder: str, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"max_duration": "2ep", "callbacks": Moments("0.5dur")}
    run(loader(folder), save_folder=str(tmp_path), **how)
    path = checkpoint_at(tmp_path, 2)  # 2 of 4 samples are one of 8, of 6 in the run.
    moments = how["callbacks"] = Moments("0.5dur")
    run(loader(folder, size=8), load_path=path, **how)
    assert (moments.due, moments.last) == ([4, 7], [4, 7])


@pytest.mark.parametrize("ignored", [None, ["state/timestamp", "state/dataset_state"]])
def test_a_clock_that_starts_anew_has_no_surplus(
    ignored: list[str] | None, folder: str, tmp_path: Path
) -> None:
    run(loader(folder), max_duration="2ep", save_folder=str(tmp_path / "first"))
    path = checkpoint_at(tmp_path / "first", 2)
    how: dict[str, Any] = {"max_duration": "2ep", "save_folder": str(tmp_path / "second")}
    how["save_overwrite"] = True
    trainer, _ = make(loader(folder, size=8), load_path=path, **how)
    trainer.fit()
    assert trainer.state.surplus_batches == 1
    if ignored is None:
        trainer.fit(duration="1ep", reset_time=True)
    trainer.close()
    if ignored is not None:
        path = checkpoint_at(tmp_path / "second", 5)
        trainer, _ = make(loader(folder, size=8), load_path=path, load_ignore_keys=ignored)
        trainer.close()
    assert (trainer.state.surplus_batches, trainer.state.loaded_batch_size) == (0, None)


def test_a_subset_of_batches_counts_those_of_both_sizes(folder: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {"train_subset_num_batches": 4, "max_duration": "2ep"}
    whole = run(loader(folder), save_folder=str(tmp_path), **how).seen
    rest = run(loader(folder, size=2), load_path=checkpoint_at(tmp_path, 3), **how).seen
    assert rest[0] == whole[3][:2] and flat(rest[1:]) == flat(whole[4:6])


def test_an_order_that_depends_on_batches_refuses_others(folder: str, tmp_path: Path) -> None:
    def mosaic(size: int) -> DataLoader:
        dataset = StreamingDataset(local=folder, shuffle=True, batch_size=size, order="mosaic")
        return DataLoader(dataset, batch_size=size)

    run(mosaic(4), save_folder=str(tmp_path))
    with pytest.raises(ValueError, match="after 8 samples in 2 batches.*hold 16"):
        run(mosaic(8), load_path=checkpoint_at(tmp_path, 2))


def test_batches_of_one_stream_go_on_at_a_whole_one_or_not_at_all(
    folder: str, tmp_path: Path
) -> None:
    def whole(size: int) -> DataLoader:
        how: dict[str, Any] = {"batching_method": "per_stream", "on_mixture_change": "record"}
        return DataLoader(StreamingDataset(local=folder, batch_size=size, **how), batch_size=size)

    run(whole(4), save_folder=str(tmp_path))
    rest = run(whole(8), load_path=checkpoint_at(tmp_path, 2), max_duration="1ep").seen
    assert flat(rest) == list(range(8, 24))
    with pytest.raises(ValueError, match="after 12 samples in 3 batches.*hold 24"):
        run(whole(8), load_path=checkpoint_at(tmp_path, 3))


def test_training_in_pieces_goes_on_within_the_epoch(folder: str) -> None:
    whole = run(loader(folder)).seen
    for workers in (0, 2):
        trainer, model = make(loader(folder, workers=workers), max_duration="2ba")
        for more in (3, 1, 6):
            trainer.fit(duration=f"{more}ba") if model.seen else trainer.fit()
        trainer.close()
        assert model.seen == whole[: len(model.seen)] and len(model.seen) == 9


def _all_of(folder: str, size: int, path: str) -> list[list[int]]:
    warnings.filterwarnings("ignore", message="The checkpoint has the random states of")
    model = run(loader(folder, "streaming", size=size), load_path=path, max_duration="2ep")
    return [sorted(sum(parts, [])) for parts in zip(*dist.all_gather_object(model.seen))]


@pytest.mark.filterwarnings("ignore:The checkpoint has the random states of 2 ranks")
@pytest.mark.parametrize("kind", ["files", "shards"])
def test_another_global_batch_on_other_ranks(
    kind: str, folder: str, saved: tuple[Path, list[list[int]]]
) -> None:
    saves, whole = saved  # 6 batches of 8 on 2 ranks, of which 2 are done
    path = checkpoint_at(saves / kind, 2)
    single = run(loader(folder, size=16), load_path=path, max_duration="2ep").seen
    assert [len(batch) for batch in single] == [8, 16, 8]
    double = run_ranks(_all_of, 2, folder, 16, path)[0]
    assert [sorted(batch) for batch in single] == double
    assert double == [whole[2], sorted(whole[3] + whole[4]), whole[5]]
