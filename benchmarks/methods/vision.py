"""Trains a ResNet on the images of Fashion-MNIST: one job of `run.py`."""

import functools
import gzip
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clock import StepClock, measure
from torch.utils.data import DataLoader, Dataset

from composer import Algorithm, Evaluator, Trainer
from composer.models import ComposerClassifier
from composer.optim import CosineAnnealingWithWarmupScheduler, DecoupledSGDW

IMAGES = Path(__file__).resolve().parents[2] / "data" / "methods" / "images"
TRAIN_IMAGES = 10_000
BATCH_SIZE = 64
WIDTHS = {"small": (16, 32, 64), "large": (24, 48, 96)}
DEFAULTS: dict[str, Any] = {
    "lr": 0.1,
    "weight_decay": 5e-4,
    "momentum": 0.9,
    "warmup": "40ba",
    "precision": "fp32",
    "blocks": "basic",
    "norm": "batch",
    "dropout": 0.0,
    "algorithms": {},
}
"""What a row may set; algorithms by class name, with their arguments."""
MODEL_SETTINGS = ("blocks", "norm", "dropout")
NORMS = {
    "batch": torch.nn.BatchNorm2d,
    "group": functools.partial(torch.nn.GroupNorm, 8),
}


def read(name: str) -> np.ndarray:
    """Reads a file of the IDX format: a magic number, the sizes, then bytes."""
    data = gzip.decompress((IMAGES / f"{name}-ubyte.gz").read_bytes())
    n_dims = data[3]
    shape = np.frombuffer(data, ">u4", n_dims, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * n_dims).reshape(shape)


class Images(Dataset):
    """Images of 28 x 28 pixels in [-1, 1] with their classes, through a transform if there is one.

    The transform sees an RGB PIL image, as algorithms that augment images expect.
    """

    def __init__(self, split: str, limit: int | None = None) -> None:
        self.pixels = torch.from_numpy(read(f"{split}-images-idx3")[:limit].copy())
        self.classes = torch.from_numpy(read(f"{split}-labels-idx1")[:limit].astype(np.int64))
        self.images = self.pixels[:, None].float().div_(127.5).sub_(1)
        self.transform: Any = None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.transform is None:
            return self.images[index], self.classes[index]
        from PIL import Image

        image = self.transform(Image.fromarray(self.pixels[index].numpy()).convert("RGB"))
        if not isinstance(image, torch.Tensor):
            image = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return image[:1].float().div(127.5).sub(1), self.classes[index]


class Block(torch.nn.Module):
    """Two convolutions beside a residual (1512.03385)."""

    def __init__(self, width_in: int, width: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = NORMS[norm](width)
        self.conv2 = torch.nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = NORMS[norm](width)
        self.shortcut = torch.nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = torch.nn.Sequential(
                torch.nn.Conv2d(width_in, width, 1, stride, bias=False),
                NORMS[norm](width),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the block's output."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Bottlenecks(torch.nn.Module):
    """Bottlenecks of transformers: three convolutions, four times as wide at their ends."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        from transformers import ResNetConfig
        from transformers.models.resnet.modeling_resnet import ResNetEncoder

        config = ResNetConfig(
            embedding_size=widths[0],
            hidden_sizes=[4 * width for width in widths],
            depths=[2] * len(widths),
        )
        self.encoder = ResNetEncoder(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the last block's output."""
        return self.encoder(x).last_hidden_state


def build_resnet(
    widths: tuple[int, ...], blocks: str = "basic", norm: str = "batch", dropout: float = 0.0
) -> torch.nn.Sequential:
    """A ResNet: a stem, two blocks a stage, a linear head, behind dropout if there is any."""
    layers: list[torch.nn.Module] = [
        torch.nn.Conv2d(1, widths[0], 3, 1, 1, bias=False),
        NORMS[norm](widths[0]),
        torch.nn.ReLU(),
    ]
    width_in = widths[0]
    if blocks == "bottleneck":
        layers.append(Bottlenecks(widths))
        width_in = 4 * widths[-1]
    else:
        for stage, width in enumerate(widths):
            first = Block(width_in, width, 2 if stage else 1, norm)
            layers += [first, Block(width, width, 1, norm)]
            width_in = width
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
    layers += [torch.nn.Dropout(dropout)] if dropout else []
    return torch.nn.Sequential(*layers, torch.nn.Linear(width_in, 10))


def build_algorithms(rows: dict[str, Any]) -> list[Algorithm]:
    """Builds algorithms from class names and arguments, or those of a preset."""
    algorithms = importlib.import_module("composer.algorithms")
    if "preset" in rows:
        return algorithms.preset(rows["preset"])
    return [getattr(algorithms, name)(**arguments) for name, arguments in rows.items()]


def train(job: dict[str, Any]) -> Trainer:
    """Trains a job's steps."""
    torch.manual_seed(job["seed"])
    if unknown := job["settings"].keys() - DEFAULTS.keys():
        raise ValueError(f"{sorted(unknown)} are no settings of the task; use {list(DEFAULTS)}.")
    settings = {**DEFAULTS, **job["settings"]}
    of_the_model = {name: settings[name] for name in MODEL_SETTINGS}
    model = ComposerClassifier(build_resnet(WIDTHS[job["size"]], **of_the_model), num_classes=10)
    order = torch.Generator().manual_seed(job["seed"])
    images = Images("train", TRAIN_IMAGES)
    loader = DataLoader(images, BATCH_SIZE, shuffle=True, drop_last=True, generator=order)
    trainer = Trainer(
        model=model,
        optimizers=DecoupledSGDW(
            model.parameters(),
            lr=settings["lr"],
            momentum=settings["momentum"],
            weight_decay=settings["weight_decay"],
            nesterov=True,
        ),
        schedulers=CosineAnnealingWithWarmupScheduler(t_warmup=settings["warmup"]),
        step_schedulers_every_batch=True,
        train_dataloader=loader,
        eval_dataloader=Evaluator(label="eval", dataloader=DataLoader(Images("t10k"), 500)),
        eval_interval=f"{job['steps']}ba" if job["evaluate"] else 0,
        max_duration=f"{job['steps']}ba",
        algorithms=build_algorithms(settings["algorithms"]),
        callbacks=[StepClock()],
        seed=job["seed"],
        precision=settings["precision"],
        progress_bar=False,
        device="cpu",
    )
    trainer.fit()
    return trainer


if __name__ == "__main__":
    measure(json.loads(sys.argv[1]), train, "MulticlassAccuracy")
