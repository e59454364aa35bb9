"""Guards the weights against steps that would harm them: spikes, NaN and infinity."""

import logging
import math
from collections import deque
from typing import Any

import torch

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.optim.grad_scaler import takes_closure
from composer.utils import dist
from composer.utils.gradients import total_norm

log = logging.getLogger(__name__)

ACTIONS = ("log", "skip_step", "stop", "raise")
_WATCHED = ("loss", "grad_norm")
# Below this share of the mean a rise is noise, even where the window happens to be flat.
_LEAST_DEVIATION = 0.01


class StabilityMonitor(Callback):
    """Looks at loss and gradient norm of each batch before the step, and acts if they are amiss.

    A value spikes if it lies more than ``threshold`` standard deviations above the mean of the last
    ``window_size`` batches; it is judged once the window is half full. Losses are means over all
    ranks, so that all ranks decide alike; the gradient norm is the one before clipping by norm.
    Into the window a spike enters no higher than the threshold: it does not hide the next one, and
    a new level is normal after a while.

    | key | logged |
    | --- | --- |
    | ``stability/grad_norm`` | the norm of all gradients |
    | ``stability/<value>_deviation`` | how many standard deviations it lies above the mean |
    | ``stability/<value>_spike_score`` | the share of batches so far in which it spiked |
    | ``stability/skipped_steps`` | how many steps were left out |

    (``<value>`` is ``loss`` or ``grad_norm``.)

    A step that is left out leaves weights, moments and the schedule of the learning rate as they
    were; the batch counts as trained. In fp16 infinite gradients belong to the search for the
    scale, whose scaler leaves out their steps itself: they are not counted here.

    Args:
        action: What to do about a spike: ``"log"`` only warns, ``"skip_step"`` leaves out the step,
            ``"stop"`` leaves it out and ends training, ``"raise"`` raises ``RuntimeError``.
        nonfinite_action: The same for a value that is NaN or infinite; by default ``action``.
        threshold: How many standard deviations are a spike.
        window_size: How many batches to compare with.
        max_skips_in_a_row: Raises after so many steps were left out one after the other: the run
            does not recover.
    """

    def __init__(
        self,
        action: str = "log",
        nonfinite_action: str | None = None,
        threshold: float = 6.0,
        window_size: int = 128,
        max_skips_in_a_row: int = 10,
    ) -> None:
        self.action = _checked_action("action", action)
        self.nonfinite_action = _checked_action("nonfinite_action", nonfinite_action or action)
        if not (threshold > 0 and window_size >= 2 and max_skips_in_a_row >= 1):
            raise ValueError(
                f"threshold={threshold!r} must be positive, window_size={window_size!r} at least 2 "
                f"and max_skips_in_a_row={max_skips_in_a_row!r} at least 1."
            )
        self.threshold = threshold
        self.window_size = window_size
        self.max_skips_in_a_row = max_skips_in_a_row
        self.windows: dict[str, deque[float]] = {
            name: deque(maxlen=window_size) for name in _WATCHED
        }
        self.num_spikes: dict[str, int] = dict.fromkeys(_WATCHED, 0)
        self.num_batches = 0
        self.num_skipped = 0
        self._skips_in_a_row = 0
        self._values: dict[str, float] = {}
        self._taken: str | None = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the windows and the counts."""
        return {
            "windows": {name: list(window) for name, window in self.windows.items()},
            "num_spikes": dict(self.num_spikes),
            "num_batches": self.num_batches,
            "num_skipped": self.num_skipped,
            "skips_in_a_row": self._skips_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on comparing with the batches before the checkpoint."""
        for name, values in state["windows"].items():
            self.windows[name] = deque(values, maxlen=self.window_size)
        self.num_spikes = dict(state["num_spikes"])
        self.num_batches = state["num_batches"]
        self.num_skipped = state["num_skipped"]
        self._skips_in_a_row = state["skips_in_a_row"]

    def fit_start(self, state: State, logger: Logger) -> None:
        """Refuses to leave out steps of optimizers that run the passes themselves."""
        wanted = {self.action, self.nonfinite_action} & {"skip_step", "stop"}
        takers = [type(each).__name__ for each in state.optimizers if takes_closure(each)]
        if wanted and takers:
            raise ValueError(
                f"action={self.action!r} leaves steps out, which {takers[0]} cannot: it runs the "
                "forward and backward passes itself. Use action='log' or action='raise'."
            )

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Judges the batch, and leaves its step out or raises, if it is to."""
        self._values = self._measure(state)
        taken, reason = self._judge(state.scaler is not None)
        if taken is None:
            return
        message = f"Batch {state.timestamp.batch.value}: {reason}."
        if taken == "raise":
            raise RuntimeError(f"{message} The step was not taken.")
        log.warning("%s Action: %s.", message, taken)
        # A batch may be for several steps (BatchSizeWarmup): the gravest action is the batch's.
        self._taken = max(self._taken or "log", taken, key=ACTIONS.index)
        if taken == "log":
            return
        state.skip_step()
        if taken == "skip_step" and self._skips_in_a_row >= self.max_skips_in_a_row:
            raise RuntimeError(
                f"{message} That would be more than max_skips_in_a_row={self.max_skips_in_a_row} "
                "steps left out one after the other: the run does not recover. Go back to an "
                "earlier checkpoint, with a lower learning rate or other data."
            )

    def batch_end(self, state: State, logger: Logger) -> None:
        """Logs, counts, and ends training if it is to."""
        if not self._values:
            return  # a batch without a target has no step
        is_skipped = self._taken in ("skip_step", "stop")
        self.num_batches += 1
        self.num_skipped += is_skipped
        self._skips_in_a_row = self._skips_in_a_row + 1 if is_skipped else 0
        news: dict[str, float] = {"stability/grad_norm": self._values["grad_norm"]}
        for name, value in self._values.items():
            deviation = self._deviation(name, value)
            if deviation is not None:
                news[f"stability/{name}_deviation"] = deviation
                self.num_spikes[name] += deviation > self.threshold
            news[f"stability/{name}_spike_score"] = self.num_spikes[name] / self.num_batches
            self._remember(name, value)
        logger.log_metrics(news | {"stability/skipped_steps": self.num_skipped})
        if self._taken == "stop":
            state.stop_training()
        self._values, self._taken = {}, None

    def _measure(self, state: State) -> dict[str, float]:
        """Brings loss and gradient norm to the host, equal on all ranks."""
        norms = [getattr(algorithm, "gradient_norm", None) for algorithm in state.algorithms]
        norm = next((each for each in norms if each is not None), None)
        if norm is None:
            gradients = [p.grad for p in state.model.parameters() if p.grad is not None]
            norm = total_norm(gradients)
        assert state.batch_loss is not None  # the train step sets it before this event
        both = torch.stack([state.batch_loss.float(), norm.to(state.batch_loss.device).float()])
        if dist.get_world_size() > 1:
            both = state.device.tensor_to_device(both)
            dist.all_reduce(both, "SUM")
            both = both / dist.get_world_size()
        return dict(zip(_WATCHED, both.tolist(), strict=True))

    def _judge(self, is_scaled: bool) -> tuple[str | None, str]:
        """Returns the action that the batch calls for, and why."""
        for name, value in self._values.items():
            if not math.isfinite(value) and not (is_scaled and name == "grad_norm"):
                return self.nonfinite_action, f"{name}={value}"
        for name, value in self._values.items():
            deviation = self._deviation(name, value)
            if deviation is not None and deviation > self.threshold:
                reason = f"{name}={value:.4g} lies {deviation:.1f} standard deviations above "
                return self.action, reason + f"the last {len(self.windows[name])} batches"
        return None, ""

    def _deviation(self, name: str, value: float) -> float | None:
        """Returns how many standard deviations a value lies above its window's mean."""
        if not math.isfinite(value) or len(self.windows[name]) < max(2, self.window_size // 2):
            return None
        mean, deviation = self._statistics(name)
        return (value - mean) / deviation

    def _statistics(self, name: str) -> tuple[float, float]:
        window = self.windows[name]
        mean = sum(window) / len(window)
        variance = sum((value - mean) ** 2 for value in window) / (len(window) - 1)
        return mean, max(math.sqrt(variance), _LEAST_DEVIATION * abs(mean), 1e-12)

    def _remember(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            return
        if self._deviation(name, value) is not None:
            mean, deviation = self._statistics(name)
            value = min(value, mean + self.threshold * deviation)
        self.windows[name].append(value)


def _checked_action(argument: str, action: str) -> str:
    if action not in ACTIONS:
        raise ValueError(f"{argument}={action!r} is unknown; use one of {', '.join(ACTIONS)}.")
    return action
