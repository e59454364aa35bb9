"""Runs of the Trainer on given batches, for callbacks that act between gradients and step."""

from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from composer import Trainer
from composer.loggers.in_memory_logger import InMemoryLogger
from composer.models.base import ComposerModel


class Line(ComposerModel):
    """Predicts the sum of four features."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.net = torch.nn.Linear(4, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.net(batch)

    def loss(self, outputs: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        return (outputs - batch.sum(dim=1, keepdim=True)).square().mean()


class Given(IterableDataset):
    """Each rank's own batches, in their order."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def batches(count: int, poison: dict[int, float] | None = None, rank: int = 0) -> list[Any]:
    """Batches of four rows; those of ``poison`` are multiplied by a number."""
    generator = torch.Generator().manual_seed(1 + rank)
    made = [torch.randn(4, 4, generator=generator) for _ in range(count)]
    for index, factor in (poison or {}).items():
        made[index] = made[index] * factor
    return made


def make_trainer(*callbacks: Any, data: list[Any], **settings: Any) -> Trainer:
    model = settings.pop("model", None) or Line()
    make_optimizer = settings.pop(
        "optimizer", lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    )
    optimizer = make_optimizer(model.parameters())
    make_scheduler = settings.pop("scheduler", None)
    return Trainer(
        model=model,
        optimizers=optimizer,
        schedulers=None if make_scheduler is None else make_scheduler(optimizer),
        train_dataloader=DataLoader(Given(data), batch_size=None),
        device_train_microbatch_size=settings.pop("microbatch", 4),
        max_duration=settings.pop("max_duration", f"{len(data)}ba"),
        callbacks=list(callbacks),
        loggers=settings.pop("loggers", None) or InMemoryLogger(),
        progress_bar=False,
        seed=7,
        device="cpu",
        **settings,
    )


def memory_of(trainer: Trainer) -> InMemoryLogger:
    return next(c for c in trainer.state.callbacks if isinstance(c, InMemoryLogger))
