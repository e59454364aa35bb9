"""Small runs for the tests of sharded checkpoints: each sample has a number, losses are kept."""

from pathlib import Path
from typing import Any

import torch

from composer import Callback, Trainer
from composer.models import ComposerClassifier
from composer.utils import dist

GLOBAL_BATCH = 4


class Numbered(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = torch.sin(torch.arange(8.0) * (index + 1))
        row[0] = index
        return row, torch.tensor(index % 3)


class Diary(Callback):
    def __init__(self) -> None:
        self.samples: list[list[int]] = []
        self.losses: list[float] = []

    def batch_start(self, state: Any, logger: Any) -> None:
        self.samples.append(state.batch[0][:, 0].int().tolist())

    def batch_end(self, state: Any, logger: Any) -> None:
        self.losses.append(state.total_loss_dict["loss/train/total"])


class Blocks(torch.nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, width)
        self.second = torch.nn.Linear(width, 5)
        self.last = torch.nn.Linear(5, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([rows[:, :1] / 40, rows[:, 1:]], dim=1)
        return self.last(torch.tanh(self.second(torch.tanh(self.first(rows)))))


def make(
    end: str, sharding: dict[str, Any] | None, copies: int = 1, width: int = 16, **kwargs: Any
) -> tuple[Trainer, Diary]:
    """Makes a run; ``copies`` is how many neighbouring ranks work on one and the same samples."""
    torch.manual_seed(5)
    model, diary, data = ComposerClassifier(Blocks(width), num_classes=3), Diary(), Numbered()
    readers, rank = dist.get_world_size() // copies, dist.get_global_rank() // copies
    sampler = dist.get_sampler(data, num_replicas=readers, rank=rank)
    settings: dict[str, Any] = {
        "optimizers": torch.optim.AdamW(model.parameters(), lr=1e-2),
        "callbacks": [diary],
        "parallelism_config": None if sharding is None else {"fsdp2": sharding},
        "save_interval": "2ba",
        "run_name": "run",
        "seed": 9,
        "progress_bar": False,
        **kwargs,
    }
    loader = torch.utils.data.DataLoader(data, GLOBAL_BATCH // readers, sampler=sampler)
    trainer = Trainer(model=model, train_dataloader=loader, max_duration=end, **settings)
    return trainer, diary


def train(end: str, sharding: dict[str, Any] | None, **kwargs: Any) -> tuple[Trainer, Diary]:
    trainer, diary = make(end, sharding, **kwargs)
    trainer.fit()
    trainer.close()
    return trainer, diary


def names(folder: str | Path) -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())
