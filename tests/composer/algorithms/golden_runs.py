"""Runs an algorithm as the last upstream releases did, and compares with their record."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer
from composer.core.algorithm import Algorithm
from composer.core.callback import Callback
from composer.models import ComposerClassifier
from tests.composer.trainer.test_golden_runs import GOLDEN, RECORDS, Note, optimizer_of


class LoaderDraw(Callback):
    """Draws at each epoch what upstream's loaders drew from the run's own generator."""

    def epoch_start(self, state: Any, logger: Any) -> None:
        torch.empty((), dtype=torch.int64).random_()


class Shapes(Callback):
    """Notes the shape of the input of every forward pass."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def before_forward(self, state: Any, logger: Any) -> None:
        self.seen.append(list(state.batch_get_item(0).shape))


def functional_record(case: str) -> dict[str, torch.Tensor]:
    """Returns the inputs and outputs of a functional form in golden/trainer/functional.npz."""
    arrays, start = np.load(GOLDEN / "functional.npz"), f"{case}|"
    return {
        name[len(start) :]: torch.from_numpy(np.asarray(arrays[name]))
        for name in arrays.files
        if name.startswith(start)
    }


def seed_as(record: dict[str, torch.Tensor]) -> None:
    """Seeds the generators as they were for a record of what draws."""
    for name, seed in (("np_seed", np.random.seed), ("torch_seed", torch.manual_seed)):
        if name in record:
            seed(int(record[name]))


def _net(kind: str, data: Any) -> torch.nn.Module:
    nn = torch.nn
    mlp: list[Any] = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)]
    cnn: list[Any] = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ]
    net = nn.Sequential(*(mlp if kind == "mlp" else cnn))
    start = f"{kind}."
    net.load_state_dict(
        {
            name[len(start) :]: torch.from_numpy(data[name])
            for name in data.files
            if name.startswith(start)
        }
    )
    return net


def run_as_recorded(
    name: str, algorithms: Algorithm | Sequence[Algorithm], *callbacks: Callback
) -> tuple[Trainer, Note]:
    """Runs the training of a record in golden/trainer/runs.json, and returns what it noted."""
    record, data = RECORDS[name], np.load(GOLDEN / "data.npz")
    net = _net(record["model"], data)
    columns = ("X", "Y") if record["model"] == "mlp" else ("images", "image_labels")
    rows = TensorDataset(*(torch.from_numpy(data[column]) for column in columns))
    model = ComposerClassifier(net, num_classes=4)
    note = Note()
    trainer = Trainer(
        model=model,
        optimizers=None if record["optimizer"] is None else optimizer_of(record, model),
        algorithms=algorithms,
        train_dataloader=DataLoader(rows, batch_size=record["batch_size"]),
        max_duration=record["max_duration"],
        device_train_microbatch_size=record["microbatch"],
        seed=17,
        callbacks=[note, *callbacks],
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    return trainer, note


def assert_as_recorded(name: str, trainer: Trainer, note: Note) -> None:
    """Compares losses, gradient norms and final weights."""
    assert_losses_as_recorded(name, note)
    final = np.load(GOLDEN / "final_weights.npz")
    weights = trainer.state.model.state_dict()
    recorded = [key for key in final.files if key.startswith(f"{name}|module.")]
    assert recorded
    for key in recorded:
        value = weights[key.split("|", 1)[1]].numpy()
        np.testing.assert_allclose(value, final[key], atol=1e-5, rtol=0)


def assert_losses_as_recorded(name: str, note: Note) -> None:
    """Compares losses and gradient norms."""
    assert note.losses == pytest.approx(RECORDS[name]["loss"], abs=1e-5)
    assert note.norms == pytest.approx(RECORDS[name]["grad_norm_before_step"], rel=1e-4)
