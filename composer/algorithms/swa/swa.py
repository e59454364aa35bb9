"""SWA: the mean of the weights over the last part of training becomes the model."""

import logging
import math
from typing import Any

import torch

from composer.algorithms.ema.averaged_weights import EMAParameters
from composer.core.algorithm import Algorithm
from composer.core.duration import Time
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time_unit import TimeUnit

__all__ = ["SWA"]

log = logging.getLogger(__name__)

_STRATEGIES = {"linear": "linear", "lin": "linear", "cos": "cos", "cosine": "cos"}
_EVENTS = {TimeUnit.BATCH: Event.BATCH_END, TimeUnit.EPOCH: Event.EPOCH_END}


class SWA(Algorithm):
    """Replaces the weights at ``swa_end`` by their mean since ``swa_start`` (arXiv 1803.05407).

    The mean is kept in the host's memory, that of a sharded model in shards beside it. Buffers,
    such as the statistics of batch norms, stay as they are: leave some training after ``swa_end``.

    Args:
        swa_start: When averaging begins: a share of the duration, or an epoch.
        swa_end: When the mean becomes the model: in the same unit.
        update_interval: How often the weights enter the mean, in batches or epochs.
        schedule_swa_lr: Holds the learning rate while averaging, in place of the scheduler: each
            update brings it nearer to the scheduler's rate at ``swa_start``, or to 1.0 without one.
        anneal_strategy: How it gets there: ``"linear"`` or ``"cos"``.
        anneal_steps: In how many updates.
        swa_lr: Has no effect, as it never had: the rate above is taken, which is logged.

    Raises:
        ValueError: For times in other units or in the wrong order, an unknown strategy, or no
            steps.
    """

    def __init__(
        self,
        swa_start: str | Time[Any] = "0.7dur",
        swa_end: str | Time[Any] = "0.97dur",
        update_interval: str | Time[Any] = "1ep",
        schedule_swa_lr: bool = False,
        anneal_strategy: str = "linear",
        anneal_steps: int = 10,
        swa_lr: float | None = None,
    ) -> None:
        self.swa_start, self.swa_end = Time.from_input(swa_start), Time.from_input(swa_end)
        self.update_interval = Time.from_input(update_interval)
        _check_times(self.swa_start, self.swa_end, self.update_interval)
        if anneal_strategy.lower() not in _STRATEGIES:
            raise ValueError(
                f"Parameter anneal_strategy={anneal_strategy!r} must be 'linear' or 'cos'."
            )
        if anneal_steps <= 0:
            raise ValueError(f"Parameter anneal_steps={anneal_steps} must be greater than 0.")
        self.schedule_swa_lr = schedule_swa_lr
        self.anneal_strategy = _STRATEGIES[anneal_strategy.lower()]
        self.anneal_steps = anneal_steps
        self.swa_lr = swa_lr
        self.match_event = _EVENTS[self.update_interval.unit]
        self.swa_model: EMAParameters | None = None
        self.swa_started = False
        self.swa_completed = False
        self.step_counter = 0
        self._n_averaged = 0
        self._initial_lrs: list[float] = []

    def match(self, event: Event, state: State) -> bool:
        """Matches at the start, and at each batch's or epoch's end while averaging."""
        if event is Event.INIT:
            return True
        is_on = event is self.match_event and not self.swa_completed
        return is_on and _has_come(self.swa_start, state)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Adds the weights to the mean, and at the end puts the mean into the model."""
        if event is Event.INIT:
            is_at_end = self.swa_end.unit is TimeUnit.DURATION and self.swa_end.value == 1
            if is_at_end and any("BatchNorm" in type(m).__name__ for m in state.model.modules()):
                log.warning(
                    "swa_end=1dur leaves no training after the mean has become the model, so batch "
                    "norms keep the statistics of other weights. Set swa_end below 1dur."
                )
            return None
        if not self.swa_started:
            self.swa_started = True
            self._start_annealing(state)
        if self.step_counter % self.update_interval.value == 0:
            self._add(state)
            self._anneal(state)
        self.step_counter += 1
        if _has_come(self.swa_end, state):
            assert self.swa_model is not None
            self.swa_model.transfer_ema_params(state.model)
            self.swa_completed = True
        return None

    def _add(self, state: State) -> None:
        if self.swa_model is None:
            # Collectives, by which a checkpoint gathers shards, are of the device that trains.
            device = None if state.fsdp_enabled else torch.device("cpu")
            self.swa_model = EMAParameters(state.model, device)
            self.swa_model.named_buffers_dict = {}
        self._n_averaged += 1
        self.swa_model.move_towards(state.model, 1 / self._n_averaged)

    def _start_annealing(self, state: State) -> None:
        if not self.schedule_swa_lr:
            return
        rates = [rate for each in state.schedulers for rate in each.get_last_lr()]
        if len(state.schedulers) > 1 or len(set(rates)) > 1:
            raise RuntimeError(
                f"schedule_swa_lr works with one scheduler and one learning rate, and the run has "
                f"{len(state.schedulers)} schedulers with the rates {rates}; leave it out."
            )
        target = rates[0] if rates else 1.0
        if self.swa_lr is not None and self.swa_lr != target:
            log.warning("swa_lr=%s has no effect: the rate goes to %s.", self.swa_lr, target)
        self.swa_lr = target
        self._initial_lrs = [group["lr"] for o in state.optimizers for group in o.param_groups]

    def _anneal(self, state: State) -> None:
        if not self.schedule_swa_lr:
            return
        assert self.swa_lr is not None
        share = min(1.0, self._n_averaged / self.anneal_steps)
        if self.anneal_strategy == "cos":
            share = (1 - math.cos(math.pi * share)) / 2
        groups = (group for optimizer in state.optimizers for group in optimizer.param_groups)
        for group, initial in zip(groups, self._initial_lrs, strict=True):
            group["lr"] = self.swa_lr * share + initial * (1 - share)

    def state_dict(self) -> dict[str, Any]:
        """Returns the mean, and where in its course the averaging is."""
        mean = None
        if self.swa_model is not None:
            named = self.swa_model.named_parameters()
            mean = {f"module.{name}": value for name, value in named}
            mean["n_averaged"] = torch.tensor(self._n_averaged)
        return {
            **super().state_dict(),
            "swa_model": mean,
            "swa_completed": self.swa_completed,
            "swa_started": self.swa_started,
            "swa_scheduler": {"initial_lrs": self._initial_lrs, "swa_lr": self.swa_lr},
            "step_counter": self.step_counter,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` returned, here or in an older release."""
        self.swa_completed = state["swa_completed"]
        self.swa_started = state["swa_started"]
        self.step_counter = state["step_counter"]
        scheduler = state["swa_scheduler"] or {}
        self._initial_lrs = scheduler.get("initial_lrs", scheduler.get("base_lrs", []))
        self.swa_lr = scheduler.get("swa_lr", self.swa_lr)
        if not self.swa_started or state["swa_model"] is None:
            return
        saved = dict(state["swa_model"])
        self._n_averaged = int(saved.pop("n_averaged"))
        self.swa_model = EMAParameters()
        self.swa_model.named_parameters_dict = {
            name.removeprefix("module."): value for name, value in saved.items()
        }


def _check_times(start: Time[Any], end: Time[Any], interval: Time[Any]) -> None:
    if start.unit is not end.unit:
        raise ValueError(f"swa_start={start} and swa_end={end} must have the same units.")
    if start.unit not in (TimeUnit.DURATION, TimeUnit.EPOCH):
        raise ValueError(f"swa_start={start} and swa_end={end} must be in dur or ep.")
    if start.unit is TimeUnit.DURATION and not (0 <= start.value <= 1 and 0 <= end.value <= 1):
        raise ValueError(f"swa_start={start} and swa_end={end} must be between 0dur and 1dur.")
    if not start < end:
        raise ValueError(f"swa_end={end} must be after swa_start={start}.")
    if interval.unit not in _EVENTS or interval.value < 1:
        raise ValueError(f"update_interval={interval} must be a number of ba or ep.")


def _has_come(time: Time[Any], state: State) -> bool:
    if time.unit is TimeUnit.EPOCH:
        return state.timestamp.epoch >= time
    elapsed = state.get_elapsed_duration()
    return elapsed is not None and elapsed >= time
