"""Small models and data for the trainer's tests."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from composer.models.base import ComposerModel


class Rows(Dataset):
    """Rows of features with a target each; a row also knows its own id."""

    def __init__(self, size: int, features: int = 4, classes: int = 3):
        generator = torch.Generator().manual_seed(size)
        self.x = torch.randn(size, features, generator=generator)
        self.y = torch.randint(0, classes, (size,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "y": self.y[index], "id": index}


def rows_loader(size: int = 12, batch_size: int = 2, **kwargs: Any) -> DataLoader:
    return DataLoader(Rows(size), batch_size=batch_size, **kwargs)


class Classifier(ComposerModel):
    """A classifier over batches of :class:`Rows`; it notes the ids that it trains on."""

    def __init__(self, features: int = 4, classes: int = 3, dropout: float = 0.0, seed: int = 3):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.net = torch.nn.Sequential(
                torch.nn.Linear(features, 8),
                torch.nn.ReLU(),
                torch.nn.Dropout(dropout),
                torch.nn.Linear(8, classes),
            )
        self.seen: list[list[int]] = []

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        if self.training:
            self.seen.append(batch["id"].tolist())
        return self.net(batch["x"])

    def loss(self, outputs: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, batch["y"])

    def eval_forward(self, batch: dict[str, Any], outputs: Any = None) -> torch.Tensor:
        return outputs if outputs is not None else self.forward(batch)

    def get_metrics(self, is_train: bool = False) -> dict[str, Any]:
        if is_train:
            return {}
        from torchmetrics.classification import MulticlassAccuracy

        return {"MulticlassAccuracy": MulticlassAccuracy(num_classes=3, average="micro")}

    def update_metric(self, batch: Any, outputs: Any, metric: Any) -> None:
        metric.update(outputs, batch["y"])


class PlainTokenLosses(ComposerModel):
    """A model whose loss is the mean of given losses of labelled tokens, times its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.weight * batch["losses"]

    def loss(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        supervised = batch["labels"] != -100
        return outputs[supervised].mean()  # NaN if there is none, as torch's own losses are

    def eval_forward(self, batch: Any, outputs: Any = None) -> torch.Tensor:
        return self.forward(batch)


class TokenLosses(PlainTokenLosses):
    """The same, and it says how many targets a batch has."""

    def num_loss_tokens(self, batch: dict[str, torch.Tensor]) -> int:
        return int((batch["labels"] != -100).sum())


def token_batches(
    rows: Sequence[Sequence[int]], losses: Sequence[float]
) -> dict[str, torch.Tensor]:
    """One batch of rows (1 where a token has a label) whose tokens all have the row's loss."""
    labels = torch.tensor(rows)
    return {
        "labels": torch.where(labels > 0, labels, torch.tensor(-100)),
        "losses": torch.tensor(losses)[:, None].expand(labels.shape).clone(),
        "input_ids": torch.zeros_like(labels),
    }
