"""Measures what our Trainer adds to a training step, beside bare PyTorch and beside its peers.

    python benchmarks/trainer_overhead.py

All loops train the same one-layer model on the same batches with the same optimizer, each at the
defaults of its trainer: what differs is the trainer. They take turns; a step is timed from one
forward pass to the next, so that starting up counts for nobody, and figures are medians over the
rounds. Lightning and the Hugging Face Trainer take part if they are installed (extra: bench).
Gradient clipping, which the latter does by default and the others do not, is off. Exits with 1 if a
bar is missed.
"""

import argparse
import importlib.util
import io
import json
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer
from composer.models import ComposerModel

RATIO_BAR = 1.25
"""Our step over a bare step."""
PEER_BAR = 1 / 3
"""Our overhead over a peer's overhead."""
WARM_UP_STEPS = 10
CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}
"""Other programs on the machine lengthen the CPU time of a step much less than its wall time."""


class OneLayer(torch.nn.Linear):
    """The model; it writes down when it was called."""

    def __init__(self, features: int, clock: str = "cpu"):
        super().__init__(features, features)
        self.now = CLOCKS[clock]
        self.called: list[float] = []

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the logits."""
        self.called.append(self.now())
        return super().forward(input)

    def seconds_per_step(self) -> float:
        """The mean time from a call to the next, once warmed up."""
        warm = self.called[WARM_UP_STEPS:]
        return (warm[-1] - warm[0]) / (len(warm) - 1)


class OneLayerComposer(ComposerModel):
    """The same for our Trainer."""

    def __init__(self, layer: OneLayer):
        super().__init__()
        self.layer = layer

    def forward(self, batch: Any) -> torch.Tensor:
        """Returns the logits."""
        return self.layer(batch[0])

    def loss(self, outputs: torch.Tensor, batch: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Returns the cross entropy."""
        return torch.nn.functional.cross_entropy(outputs, batch[1])


def bare(layer: OneLayer, loader: DataLoader[Any]) -> None:
    """An epoch in plain PyTorch."""
    optimizer = sgd(layer)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(layer(inputs), targets)
        loss.backward()
        optimizer.step()


def ours(layer: OneLayer, loader: DataLoader[Any]) -> None:
    """An epoch of our Trainer."""
    model = OneLayerComposer(layer)
    trainer = Trainer(
        model=model, train_dataloader=loader, optimizers=sgd(model), max_duration="1ep"
    )
    trainer.fit()
    trainer.close()


def lightning(layer: OneLayer, loader: DataLoader[Any]) -> None:
    """An epoch of Lightning's Trainer."""
    import lightning  # pyright: ignore[reportMissingImports]  # an optional peer

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def training_step(self, batch: Any) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return sgd(self)

    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(max_epochs=1, default_root_dir=folder)
        trainer.fit(Module(), loader)


def hugging_face(layer: OneLayer, loader: DataLoader[Any]) -> None:
    """An epoch of the Hugging Face Trainer."""
    import transformers

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.layer(inputs)
            loss = torch.nn.functional.cross_entropy(logits, labels)
            return {"loss": loss, "logits": logits}

    def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
        inputs, labels = torch.utils.data.default_collate(rows)
        return {"inputs": inputs, "labels": labels}

    model = Module()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=loader.batch_size or 1,
            max_grad_norm=0.0,
            save_strategy="no",
            report_to=[],
        )
        transformers.Trainer(
            model=model,
            args=arguments,
            train_dataset=loader.dataset,
            data_collator=collate,
            optimizers=(sgd(model), None),
        ).train()


LOOPS = {"bare": bare, "ours": ours, "lightning": lightning, "hugging_face": hugging_face}
NEEDS = {"lightning": "lightning", "hugging_face": "accelerate"}


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all loops."""
    return torch.optim.SGD(model.parameters(), lr=0.1)


def arguments_of(description: str | None) -> argparse.Namespace:
    """The command line that the benchmarks of a step have in common."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--features", type=int, default=512, help="of the one layer, in and out")
    parser.add_argument("--clock", choices=CLOCKS, default="cpu", help="what time is taken")
    parser.add_argument("--json", type=Path, default=None, help="write the result here too")
    return parser.parse_args()


def make_loader(arguments: argparse.Namespace) -> DataLoader[Any]:
    """The batches that all loops train on."""
    torch.set_num_threads(1)  # steadier on a machine that others use too
    torch.manual_seed(17)
    samples = arguments.steps * arguments.batch_size
    inputs = torch.randn(samples, arguments.features)
    targets = torch.randint(arguments.features, (samples,))
    return DataLoader(TensorDataset(inputs, targets), batch_size=arguments.batch_size)


def seconds_per_step(
    loop: Callable[..., None], arguments: argparse.Namespace, loader: DataLoader[Any]
) -> float:
    """Runs a loop, whatever it prints going to memory."""
    torch.manual_seed(17)
    layer, nowhere = OneLayer(arguments.features, arguments.clock), io.StringIO()
    with redirect_stdout(nowhere), redirect_stderr(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the peers, about workers and pinned memory
        loop(layer, loader)
    return layer.seconds_per_step()


def main() -> int:
    """Prints the cost of a step in each loop; returns 1 if a bar is missed."""
    arguments = arguments_of(__doc__)
    logging.disable(logging.WARNING)
    loader = make_loader(arguments)
    names = [name for name in LOOPS if importlib.util.find_spec(NEEDS.get(name, "torch"))]
    for name in LOOPS.keys() - set(names):
        print(f"{name} does not take part: {NEEDS[name]} is not installed (extra: bench)")
    rounds = [
        {name: seconds_per_step(LOOPS[name], arguments, loader) for name in names}
        for _ in range(arguments.rounds)
    ]
    overheads = {
        name: statistics.median(times[name] - times["bare"] for times in rounds) for name in names
    }
    for name in names:
        seconds = statistics.median(times[name] for times in rounds)
        print(f"{name:14} {seconds * 1e6:8,.0f} us a step, {overheads[name] * 1e6:+8,.0f} us")
    ratio = statistics.median(times["ours"] / times["bare"] for times in rounds)
    verdicts = {f"our step is {ratio:.2f} of a bare one": (ratio, RATIO_BAR)}
    for name in names[2:]:
        share = overheads["ours"] / overheads[name]
        verdicts[f"our overhead is {share:.2f} of {name}'s"] = (share, PEER_BAR)
    for text, (value, bar) in verdicts.items():
        print(f"{text}: {'within' if value <= bar else 'OVER'} the bar of {bar:.2f}")
    if arguments.json is not None:
        row = {"overhead_seconds": overheads, "ratio": ratio, "bar": RATIO_BAR}
        arguments.json.write_text(json.dumps(row) + "\n", encoding="utf-8")
    return int(any(value > bar for value, bar in verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())
