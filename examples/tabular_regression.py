"""Predicts a number from a table of numeric and categorical columns, until it gets no better.

    python examples/tabular_regression.py --duration 40ep

It shows a model of one's own: any module that can say ``forward(batch)`` and ``loss(outputs,
batch)`` trains, on batches of any shape; here they are dicts.
"""

import argparse
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import MeanAbsoluteError, R2Score

from composer import Trainer
from composer.callbacks import EarlyStopper
from composer.models import ComposerModel
from composer.optim import DecoupledAdamW, LinearWithWarmupScheduler

CITIES = 5
NUMERIC = ("area", "rooms", "age", "distance")

Row = dict[str, torch.Tensor]


def make_table(rows: int, seed: int = 0) -> list[Row]:
    """Makes up flats: four numeric columns, the city, and the rent that follows from them."""
    generator = torch.Generator().manual_seed(seed)
    area = 20 + 100 * torch.rand(rows, generator=generator)
    rooms = (area / 25).round() + torch.randint(2, (rows,), generator=generator)
    age = 80 * torch.rand(rows, generator=generator)
    distance = 15 * torch.rand(rows, generator=generator)
    city = torch.randint(CITIES, (rows,), generator=generator)
    per_square_metre = (8 + 2.5 * city) * torch.exp(-distance / 20) * (1.2 - age / 200)
    rent = area * per_square_metre + 40 * rooms + 20 * torch.randn(rows, generator=generator)
    numeric = torch.stack([area, rooms, age, distance], dim=1)
    return [{"numeric": numeric[row], "city": city[row], "rent": rent[row]} for row in range(rows)]


class RentModel(ComposerModel):
    """An embedding of the city beside the standardised numbers, and two layers over both.

    Args:
        rows: The training rows, from which it learns the scale of each column.
    """

    def __init__(self, rows: list[Row], width: int = 64):
        super().__init__()
        numeric = torch.stack([row["numeric"] for row in rows])
        rents = torch.stack([row["rent"] for row in rows])
        # Buffers: they move with the model and are in its checkpoints, but are not trained.
        self.register_buffer("numeric_mean", numeric.mean(dim=0))
        self.register_buffer("numeric_std", numeric.std(dim=0))
        self.register_buffer("rent_mean", rents.mean())
        self.register_buffer("rent_std", rents.std())
        self.city = nn.Embedding(CITIES, 8)
        self.layers = nn.Sequential(
            nn.Linear(len(NUMERIC) + 8, width), nn.GELU(), nn.Linear(width, 1)
        )
        self.metrics = {"MeanAbsoluteError": MeanAbsoluteError(), "R2Score": R2Score()}

    def forward(self, batch: Row) -> torch.Tensor:
        """Returns the rents."""
        numeric = (batch["numeric"] - self.numeric_mean) / self.numeric_std
        features = torch.cat([numeric, self.city(batch["city"])], dim=1)
        return self.layers(features).squeeze(1) * self.rent_std + self.rent_mean

    def loss(self, outputs: torch.Tensor, batch: Row, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Returns the squared error, in standard deviations of the rent."""
        return nn.functional.mse_loss(outputs / self.rent_std, batch["rent"] / self.rent_std)

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        """Returns what an evaluation computes; nothing in training."""
        return {} if is_train else self.metrics

    def update_metric(self, batch: Row, outputs: torch.Tensor, metric: Any) -> None:
        """Adds a batch to a metric."""
        metric.update(outputs, batch["rent"])


def train(duration: str, rows: int = 2000, seed: int = 17) -> dict[str, float]:
    """Trains, and returns the metrics on rows that were not trained on."""
    table = make_table(rows)
    held_out, trained_on = table[: rows // 5], table[rows // 5 :]
    torch.manual_seed(seed)
    model = RentModel(trained_on)
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(trained_on, batch_size=64, shuffle=True),
        eval_dataloader=DataLoader(held_out, batch_size=256),
        optimizers=DecoupledAdamW(model.parameters(), lr=1e-2),
        schedulers=LinearWithWarmupScheduler(t_warmup="0.1dur", alpha_f=0.01),
        max_duration=duration,
        callbacks=EarlyStopper("MeanAbsoluteError", "eval", comp="less", patience="5ep"),
        seed=seed,
    )
    trainer.fit()
    rents = trainer.predict(DataLoader(held_out[:3], batch_size=3))[0]
    for row, rent in zip(held_out, rents.tolist(), strict=False):
        print(f"rent {row['rent']:7.2f}, predicted {rent:7.2f}")
    trainer.close()
    return {name: float(value) for name, value in trainer.state.eval_metric_values.items()}


def main() -> None:
    """Trains as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--duration", default="40ep", help="at most so long")
    arguments = parser.parse_args()
    for name, value in train(arguments.duration).items():
        print(f"{name} {value:.3f}")


if __name__ == "__main__":
    main()
