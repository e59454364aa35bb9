"""Measures what common algorithms add to a training step of ten million parameters.

    python benchmarks/algorithm_overhead.py

Two trainers, with an algorithm and without it, train the same model in turns, a few steps each; the
figure is the median over the turns of one's CPU time over the other's. GradientClipping, EMA and
ALiBi meet a GPT-2 of transformers, LabelSmoothing a classifier. The pair `nothing` has no algorithm
on either side: what it shows is the error of the figures. It takes eight minutes. Exits with 1 if a
bar is missed.

An algorithm that is not in the list costs nothing, since nothing of it is there to be called; what
events cost that nobody handles is measured by `unhandled_events.py`.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from composer import Algorithm, Callback, Trainer
from composer.algorithms import EMA, Alibi, GradientClipping, LabelSmoothing
from composer.models import ComposerClassifier, ComposerModel, HuggingFaceModel

BAR = 1.03
BATCH_SIZE = 8
SEQUENCE_LENGTH = 256
N_CLASSES = 100

ALGORITHMS: dict[str, Callable[[], list[Algorithm]]] = {
    "nothing": list,
    "gradient_clipping": lambda: [GradientClipping("norm", clipping_threshold=1.0)],
    "ema": lambda: [EMA(half_life="100ba", update_interval="1ba")],
    "alibi": lambda: [Alibi(max_sequence_length=SEQUENCE_LENGTH)],
    "label_smoothing": lambda: [LabelSmoothing(smoothing=0.1)],
}


class Clock(Callback):
    """The CPU time from one batch's end to the next one's."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last: float | None = None

    def fit_start(self, state, logger) -> None:
        """Begins anew: the time between two turns is the other's."""
        self._last = None

    def batch_end(self, state, logger) -> None:
        """Takes the time of a step, but for the first one of a turn."""
        now = time.process_time()
        if self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now


def language_model() -> tuple[ComposerModel, DataLoader[Any]]:
    """A GPT-2 of ten million parameters with tokens at random."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=4096, n_positions=SEQUENCE_LENGTH, n_embd=320, n_layer=7, n_head=5
    )
    tokens = torch.randint(4096, (64, SEQUENCE_LENGTH))
    rows: Any = [{"input_ids": row, "labels": row} for row in tokens]
    model = HuggingFaceModel(transformers.GPT2LMHeadModel(config), use_logits=False)
    return model, DataLoader(rows, BATCH_SIZE)


def classifier() -> tuple[ComposerModel, DataLoader[Any]]:
    """A perceptron of ten million parameters with inputs at random."""
    width = 2200
    network = torch.nn.Sequential(
        torch.nn.Linear(256, width),
        *(layer for _ in range(2) for layer in (torch.nn.ReLU(), torch.nn.Linear(width, width))),
        torch.nn.ReLU(),
        torch.nn.Linear(width, N_CLASSES),
    )
    rows: Any = list(zip(torch.randn(1024, 256), torch.randint(N_CLASSES, (1024,)), strict=True))
    return ComposerClassifier(network, num_classes=N_CLASSES), DataLoader(rows, 128)


def set_up(name: str, algorithms: list[Algorithm]) -> tuple[Trainer, Clock]:
    """A trainer that has not begun."""
    torch.manual_seed(17)
    model, loader = classifier() if name == "label_smoothing" else language_model()
    assert 9e6 < sum(each.numel() for each in model.parameters()) < 11e6
    clock = Clock()
    trainer = Trainer(
        model=model,
        train_dataloader=loader,
        optimizers=torch.optim.SGD(model.parameters(), lr=1e-3),
        algorithms=algorithms,
        callbacks=[clock],
        seed=17,
        device="cpu",
        progress_bar=False,
    )
    return trainer, clock


def measure(name: str, turns: int, steps: int) -> float:
    """The time of a step with an algorithm over that of one without."""
    pairs = [set_up(name, ALGORITHMS[name]()), set_up(name, [])]
    ratios = []
    for turn in range(turns + 1):
        for trainer, clock in pairs if turn % 2 else reversed(pairs):
            clock.seconds.clear()
            trainer.fit(duration=f"{steps + 1}ba")
        if turn:  # the first one warms up
            own, bare = (statistics.median(clock.seconds) for _, clock in pairs)
            ratios.append(own / bare)
    for trainer, _ in pairs:
        trainer.close()
    return statistics.median(ratios)


def main() -> int:
    """Measures all, prints them, and returns 1 if one is over the bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--steps", type=int, default=4, help="steps in a turn")
    parser.add_argument("--json", type=Path, help="writes the figures to this file")
    arguments = parser.parse_args()
    ratios = {}
    for name in arguments.only:
        ratios[name] = measure(name, arguments.turns, arguments.steps)
        print(f"{name}: a step takes {ratios[name]:.3f} (bar {BAR})", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(ratios))
    return int(any(ratio > BAR for ratio in ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
