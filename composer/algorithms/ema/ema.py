"""EMA: trains as ever, and evaluates and saves an exponential moving average of the weights."""

import logging
from typing import Any

import torch

from composer.algorithms.ema.averaged_weights import EMAParameters, compute_ema
from composer.algorithms.ema.evaluated_average import EvaluatedAverage
from composer.core.duration import Time
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time_unit import TimeUnit

__all__ = ["EMA", "EMAParameters", "compute_ema"]

log = logging.getLogger(__name__)


class EMA(EvaluatedAverage):
    """Keeps an exponential moving average of the weights, which is what is evaluated and saved.

    Each ``update_interval`` it becomes ``smoothing * average + (1 - smoothing) * weights``, and it
    stands in the model's place during evaluation and in checkpoints.

    Args:
        half_life: After how long old weights count half, in batches or epochs; sets ``smoothing``.
        smoothing: How much of the average stays with each update; with ``half_life=None``.
        ema_start: When averaging begins, in any unit.
        update_interval: How often the average moves: batches or epochs, as ``half_life``. By
            default one unit of ``half_life``, or one batch.

    Raises:
        ValueError: If both or none of ``half_life`` and ``smoothing`` are given, or the units are
            not batches or epochs, or differ.
    """

    def __init__(
        self,
        half_life: str | Time[Any] | None = "1000ba",
        smoothing: float | None = None,
        ema_start: str | Time[Any] = "0.0dur",
        update_interval: str | Time[Any] | None = None,
    ) -> None:
        if (half_life is None) == (smoothing is None):
            raise ValueError(
                f"half_life={half_life!r} and smoothing={smoothing!r}: exactly one of them must be "
                "specified. half_life has a default, so give smoothing with half_life=None."
            )
        self.half_life = life = None if half_life is None else Time.from_input(half_life)
        if update_interval is None:
            update_interval = Time(1, TimeUnit.BATCH if life is None else life.unit)
        super().__init__(update_interval, ema_start)
        if life is not None and life.unit is not self.update_interval.unit:
            raise ValueError(
                f"Units of half_life ({life}) and update_interval ({self.update_interval}) must "
                "match: give both in ba, or both in ep."
            )
        if life is not None:
            if life.value <= 0:
                raise ValueError(f"half_life={half_life!r} must be a positive number of ba or ep.")
            smoothing = 2 ** -(self.update_interval.value / life.value)
        assert smoothing is not None
        if not 0 <= smoothing <= 1:
            raise ValueError(f"smoothing={smoothing!r} must be between 0 and 1.")
        self.smoothing = smoothing

    def update(self, model: torch.nn.Module) -> None:
        """Moves the average towards the model's weights."""
        assert self.ema_model is not None
        self.ema_model.move_towards(model, 1 - self.smoothing)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Makes the first copy, and does at the other events what `EvaluatedAverage` does."""
        if event is Event.INIT:
            # Of a model that is yet to be sharded, or to get weights, a copy would be of no use.
            is_final = state.fsdp_config is None and not any(
                parameter.is_meta for parameter in state.model.parameters()
            )
            self.ema_model = EMAParameters(state.model) if is_final else None
            self._remark_on_coarse_weights(state.model)
            return None
        return super().apply(event, state, logger)

    def _remark_on_coarse_weights(self, model: torch.nn.Module) -> None:
        """Warns if a weight's type cannot hold the small moves of its average."""
        finest = {torch.finfo(p.dtype).eps for p in model.parameters() if p.is_floating_point()}
        if max(finest, default=0.0) > 1 - self.smoothing:
            log.warning(
                "The average moves by %.2g of its distance with each update, and weights of low "
                "precision cannot hold such small moves: keep float32 weights, or give EMA a "
                "longer update_interval.",
                1 - self.smoothing,
            )

    def match(self, event: Event, state: State) -> bool:
        """Matches at the start, at each update, and where evaluated or saved weights change."""
        return event is Event.INIT or super().match(event, state)

    def get_ema_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Copies the average into a model of the same kind, and returns it.

        Raises:
            ValueError: If the average stands in the trained model now, or there is none.
        """
        if self.ema_weights_active or self.ema_model is None:
            raise ValueError(
                "The averaged weights are in the model that is trained, or there are none yet, so "
                "there is nothing to copy: ask between a batch's start and its end."
            )
        self.ema_model.transfer_ema_params(model)
        return model

    def get_training_model(self, model: torch.nn.Module) -> torch.nn.Module:
        """Copies the weights that are trained into a model of the same kind, and returns it.

        Raises:
            ValueError: If they are in the trained model itself.
        """
        if not self.ema_weights_active or self.ema_model is None:
            raise ValueError("The weights that are trained are in the model itself: use that.")
        self.ema_model.transfer_ema_params(model)
        return model

    def state_dict(self) -> dict[str, Any]:
        """Returns the set of weights that is not in the model, and which of the two it is."""
        held = None if self.ema_model is None else self.ema_model.state_dict()
        return {
            **super().state_dict(),
            "ema_model": held or EMAParameters().state_dict(),
            "ema_weights_active": self.ema_weights_active,
            "ema_started": self.ema_started,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` returned, here or in an older release."""
        self.ema_weights_active = state["ema_weights_active"]
        self.ema_started = state["ema_started"]
        held = state["ema_model"]
        if self.ema_weights_active and "training_model" in state:
            held = state["training_model"]  # older releases kept both sets
        self.ema_model = EMAParameters()
        self.ema_model.load_state_dict(held)
