"""A run of the trainer over a streaming dataset, stopped and resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from composer.models.base import ComposerModel
from composer.trainer.trainer import Trainer
from streaming import StreamingDataLoader, StreamingDataset
from streaming.base.store import open_store
from tests.composer.utils.object_store.faults import Proxy
from tests.launch import run_ranks
from tests.streaming.shards import ids_of, write_ids


class Recorder(ComposerModel):
    """Remembers the ids of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, batch: Any) -> torch.Tensor:
        self.seen.append(ids_of(batch))
        return self.linear(batch["id"].float()[:, None] / 50)

    def loss(self, outputs: Any, batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return outputs.square().mean()


def run(
    folder: str, duration: str, subset: int, remote: str | None = None, **kwargs: Any
) -> list[list[int]]:
    dataset = StreamingDataset(local=folder, remote=remote, shuffle=True, batch_size=8)
    model = Recorder()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(dataset, batch_size=8, num_workers=0 if remote is None else 2),
        optimizers=torch.optim.SGD(model.parameters(), 0.01),
        max_duration=duration,
        train_subset_num_batches=subset,
        device="cpu",
        progress_bar=False,
        seed=1,
        **kwargs,
    )
    trainer.fit()
    trainer.close()
    return model.seen


class Scored(Recorder):
    """Scores each id with itself, so that the mean says which were counted."""

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        return {} if is_train else {"Mean": MeanMetric()}

    def eval_forward(self, batch: Any, outputs: Any = None) -> torch.Tensor:
        return batch["id"].float()

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
        metric.update(outputs)


def scores(folders: list[str]) -> list[tuple[float, int]]:
    trainer = Trainer(
        model=Scored(), optimizers=torch.optim.SGD(Recorder().parameters()), progress_bar=False
    )
    found = []
    for folder in folders:
        dataset = StreamingDataset(local=folder, batch_size=2)
        trainer.eval(StreamingDataLoader(dataset, batch_size=2))
        samples = int(trainer.state.eval_timestamp.sample)
        found.append((float(trainer.state.eval_metric_values["Mean"]), samples))
    trainer.close()
    return found


@pytest.mark.filterwarnings("ignore:.*are overwritten:UserWarning")
def test_b09_samples_that_are_repeated_for_a_rank_count_once(tmp_path: Path) -> None:
    sizes = (1, 3, 5, 6, 8)
    folders = [write_ids(tmp_path / str(size), size) for size in sizes]
    for found in run_ranks(scores, 2, folders):
        assert found == [((size - 1) / 2, size) for size in sizes]


@pytest.mark.parametrize("subset", [-1, 4])
@pytest.mark.parametrize("interval", ["1ep", "10ba"])
def test_resumed_runs_see_what_unbroken_ones_see(
    subset: int, interval: str, tmp_path: Path
) -> None:
    folder, saves = write_ids(tmp_path, 50), str(tmp_path / "saves")
    whole = run(folder, "3ep", subset)
    head = run(folder, interval, subset, save_folder=saves, save_interval=interval)
    tail = run(folder, "3ep", subset, load_path=f"{saves}/latest-rank0.pt")
    assert head + tail == whole


def test_data_and_checkpoints_in_a_store(s3: Proxy, tmp_path: Path) -> None:
    local, saves = write_ids(tmp_path, 50), "s3://bucket/saves"
    store = open_store("s3://bucket/data")
    for path in Path(local).iterdir():
        store.put(str(path), path.name)
    whole = run(local, "2ep", -1)
    data, cache = "s3://bucket/data", str(tmp_path / "cache")
    head = run(cache, "10ba", -1, data, save_folder=saves, save_interval="10ba")
    tail = run(cache, "2ep", -1, data, load_path=f"{saves}/latest-rank0.pt")
    assert head + tail == whole
    asked = [
        path for method, path, _headers in s3.seen if method == "GET" and "/data/shard" in path
    ]
    assert len(asked) == len(set(asked)) == len(list(Path(cache).glob("shard*")))
