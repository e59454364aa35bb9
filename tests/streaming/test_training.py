"""A run of the trainer over a streaming dataset, stopped and resumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer.models.base import ComposerModel
from composer.trainer.trainer import Trainer
from streaming import StreamingDataset
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


def run(folder: str, duration: str, subset: int, **kwargs: Any) -> list[list[int]]:
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=8)
    model = Recorder()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(dataset, batch_size=8),
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
