"""What both tasks share: the time of a step without evaluations, and the way back to `run.py`."""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from composer import Callback, Trainer

WARM_UP_STEPS = 5
REFERENCE_STEPS = 40


class StepClock(Callback):
    """Measures the time from one batch's end to the next one's, evaluations left out."""

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
        self._last = now

    def eval_all_end(self, state, logger) -> None:
        """Leaves an evaluation out."""
        self._last = time.perf_counter()

    def mean(self) -> float:
        """The mean time of a step, without warm-up and the twentieth at either end.

        A median would not see a method whose steps differ in length.
        """
        warm = sorted(self.seconds[WARM_UP_STEPS:])
        cut = len(warm) // 20
        return statistics.mean(warm[cut : len(warm) - cut])


def measure(job: dict[str, Any], train: Callable[[dict[str, Any]], Trainer], metric: str) -> None:
    """Times the baseline's step, trains the job, and prints its result as a line of JSON."""
    steps = min(REFERENCE_STEPS, job["steps"])
    reference = train({**job, "settings": {}, "steps": steps, "evaluate": False})
    reference.close()
    trainer = train({**job, "evaluate": True})
    value = float(trainer.state.eval_metrics["eval"][metric].compute())
    trainer.close()
    clock, reference_clock = clock_of(trainer), clock_of(reference)
    result = {
        "metric": value,
        "step_seconds": clock.mean(),
        "seconds": sum(clock.seconds),
        "cost": clock.mean() / reference_clock.mean(),
    }
    print(json.dumps(result))


def clock_of(trainer: Trainer) -> StepClock:
    """The clock among a trainer's callbacks."""
    return next(each for each in trainer.state.callbacks if isinstance(each, StepClock))
