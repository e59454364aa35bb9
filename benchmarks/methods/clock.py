"""What both tasks share: the time of a step beside the baseline's, and the way back to `run.py`."""

import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch

from composer import Callback, Trainer

WARM_UP_STEPS = 5
BLOCKS = 8
BLOCK_STEPS = 6


class StepClock(Callback):
    """Measures the time from one batch's end to the next one's, evaluations left out.

    At ``every`` steps the reference trains a block, which takes no part in the times.
    """

    every: ClassVar[int] = 0
    reference: ClassVar["Reference | None"] = None

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = 0.0

    def epoch_start(self, state, logger) -> None:
        """Starts anew: what lies between epochs is nobody's."""
        self._last = time.perf_counter()

    def batch_end(self, state, logger) -> None:
        """Takes the time of a whole step, its loading included."""
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        if self.reference is not None and len(self.seconds) % self.every == 0:
            self.reference.train_a_block()
        self._last = time.perf_counter()

    def eval_all_end(self, state, logger) -> None:
        """Leaves an evaluation out."""
        self._last = time.perf_counter()


def mean(seconds: list[float]) -> float:
    """The mean without the twentieth at either end.

    A median would not see a method whose steps differ in length.
    """
    ordered = sorted(seconds)
    cut = len(ordered) // 20
    return statistics.mean(ordered[cut : len(ordered) - cut])


class Reference:
    """The baseline, trained a few steps at a time between the steps of a method.

    Whatever else the machine does in the meantime falls on both alike.
    """

    def __init__(self, job: dict[str, Any], train: Callable[[dict[str, Any]], Trainer]) -> None:
        self.trainer = train({**job, "settings": {}, "steps": BLOCK_STEPS, "evaluate": False})
        self.seconds: list[float] = []

    def train_a_block(self) -> None:
        """Trains a block, and keeps the method's random numbers as they were."""
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        before = len(clock_of(self.trainer).seconds)
        StepClock.reference = None  # its own steps are followed by no others
        self.trainer.fit(duration=f"{BLOCK_STEPS}ba")
        StepClock.reference = self
        self.seconds += clock_of(self.trainer).seconds[before + 1 :]
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def measure(job: dict[str, Any], train: Callable[[dict[str, Any]], Trainer], metric: str) -> None:
    """Trains the job with the baseline's steps between, and prints its result as a line of JSON."""
    reference = Reference(job, train)
    StepClock.reference, StepClock.every = reference, max(1, job["steps"] // BLOCKS)
    trainer = train({**job, "evaluate": True})
    StepClock.reference = None
    value = float(trainer.state.eval_metrics["eval"][metric].compute())
    seconds = clock_of(trainer).seconds
    trainer.close()
    reference.trainer.close()
    step = mean(seconds[WARM_UP_STEPS:])
    result = {
        "metric": value,
        "step_seconds": step,
        "seconds": sum(seconds),
        "cost": step / mean(reference.seconds),
    }
    print(json.dumps(result))


def clock_of(trainer: Trainer) -> StepClock:
    """The clock among a trainer's callbacks."""
    return next(each for each in trainer.state.callbacks if isinstance(each, StepClock))
