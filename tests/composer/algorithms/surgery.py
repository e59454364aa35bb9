"""What the tests of algorithms that change a model share."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from composer.core.event import Event
from composer.core.precision import Precision

GOLDEN = Path(__file__).parents[2] / "golden" / "trainer"


class Golden:
    """The recorded results of functional forms."""

    def __init__(self, case: str) -> None:
        with np.load(GOLDEN / "functional.npz") as arrays:
            start = f"{case}|"
            self.arrays = {
                name[len(start) :]: torch.from_numpy(arrays[name])
                for name in arrays.files
                if name.startswith(start)
            }

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.arrays[name]

    def weights(self) -> dict[str, torch.Tensor]:
        return {name[2:]: value for name, value in self.arrays.items() if name.startswith("w.")}


def golden_fact(name: str) -> Any:
    return json.loads((GOLDEN / "functional.json").read_text())[name]


class Bottleneck(nn.Module):
    """As torchvision's."""

    def __init__(self, width: int = 4, downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(2)
        self.conv2 = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2)
        self.conv3 = nn.Conv2d(2, width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.downsample = downsample

    def main(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.bn3(self.conv3(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        return self.relu(self.main(x) + identity)


class Noted:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.hparams: dict[str, Any] = {}
        self.metrics: dict[str, Any] = {}

    def log_hyperparameters(self, hparams: dict[str, Any]) -> None:
        self.hparams |= hparams

    def log_metrics(self, metrics: dict[str, Any]) -> None:
        self.metrics |= metrics


def apply_at(
    algorithm: Any, model: torch.nn.Module, event: Event = Event.INIT, **state: Any
) -> tuple[Any, Noted]:
    """Applies an algorithm at an event that it must match; returns the state and the logger."""
    known = {
        "optimizers": [],
        "precision": Precision.FP32,
        "fsdp_config": None,
        "rank_zero_seed": 17,
    }
    filled: Any = SimpleNamespace(model=model, **{**known, **state})
    logger: Any = Noted()
    assert algorithm.match(event, filled)
    algorithm.apply(event, filled, logger)
    return filled, logger
