"""A run over a StreamingDataset that was stopped and resumed equals the unbroken run (B33-B41)."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer.models.base import ComposerModel
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


@pytest.mark.filterwarnings("ignore:The checkpoint has the random states of 2 ranks")
def test_b41_another_global_batch_within_an_epoch_is_refused(
    folder: str, saved: tuple[Path, list[list[int]]]
) -> None:
    for kind in ("files", "shards"):
        for size in (4, 16):
            path = checkpoint_at(saved[0] / kind, 2)
            with pytest.raises(ValueError, match=f"after 16 samples in 2 batches.*hold {2 * size}"):
                run(loader(folder, size=size), load_path=path)
