"""The inverse-square-root schedule with a cool-down."""

import math
import warnings
from typing import Any

from composer.core.state import State
from composer.core.time import Time, TimeUnit
from composer.optim.schedule_time import convert_time, elapsed, warn_of_long_warmup
from composer.optim.schedules import ComposerScheduler
from llmfoundry.utils.warnings import experimental_class

__all__ = ["InverseSquareRootWithWarmupScheduler"]


@experimental_class("InverseSquareRootWithWarmupScheduler")
class InverseSquareRootWithWarmupScheduler(ComposerScheduler):
    """Rises linearly, falls with the inverse square root of time, and cools down linearly.

    A run on it can be prolonged from any point before the cool-down. With ``t`` counted in the unit
    of ``max_duration``:

    - ``t < t_warmup``: ``t / t_warmup``;
    - then ``d + (1 - d) / sqrt((t - t_warmup + t_scale) / t_scale)`` with ``d = alpha_f_decay``;
    - in the last ``t_cooldown`` before ``t_max``: linearly from there to ``alpha_f_cooldown``.

    Args:
        t_warmup: Length of the rise.
        t_scale: How slowly the rate falls.
        t_cooldown: Length of the cool-down.
        t_max: End of the schedule.
        alpha_f_decay: What the decay approaches, as a share of the full rate.
        alpha_f_cooldown: Where the cool-down ends, as a share of the full rate.
    """

    def __init__(
        self,
        t_warmup: str | Time[Any],
        t_scale: str | Time[Any],
        t_cooldown: str | Time[Any],
        t_max: str | Time[Any] = "1dur",
        alpha_f_decay: float = 0.0,
        alpha_f_cooldown: float = 0.0,
    ) -> None:
        if alpha_f_decay < alpha_f_cooldown:
            raise ValueError(
                "Required: alpha_f_decay >= alpha_f_cooldown. Current: "
                f"alpha_f_decay={alpha_f_decay}, alpha_f_cooldown={alpha_f_cooldown}."
            )
        for name, value in (
            ("t_warmup", t_warmup),
            ("t_scale", t_scale),
            ("t_cooldown", t_cooldown),
        ):
            if Time.from_input(value).unit == TimeUnit.DURATION:
                raise ValueError(
                    f'{name} cannot be in units of "dur". A schedule that can be prolonged must '
                    f"not depend on the duration. Got {value}."
                )
        self.t_warmup = t_warmup
        self.t_scale = t_scale
        self.t_cooldown = t_cooldown
        self.t_max = t_max
        self.alpha_f_decay = alpha_f_decay
        self.alpha_f_cooldown = alpha_f_cooldown
        if Time.from_input(t_warmup).value == 0:
            warnings.warn("The warmup duration is 0.", stacklevel=2)

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """The factor on the learning rate at the state's time."""
        assert state.max_duration is not None, "max_duration should be set"
        for name in ("t_warmup", "t_scale", "t_cooldown"):
            value, duration = Time.from_input(getattr(self, name)), state.max_duration
            if value.unit != duration.unit:
                raise ValueError(
                    f"{name} (unit {value.unit}) must match max_duration (unit {duration.unit}): "
                    f"{name}={value}, max_duration={duration}; give both in one unit."
                )
        t_warmup = convert_time(self.t_warmup, state)  # a stretched run warms up no longer
        t_scale, t_cooldown, t_max = (
            convert_time(each, state, ssr) for each in (self.t_scale, self.t_cooldown, self.t_max)
        )
        if t_scale.value <= 0:
            raise ValueError(
                f"t_scale={self.t_scale} is no time at all in this run (scale_schedule_ratio="
                f"{ssr}); it must be at least one unit."
            )
        warn_of_long_warmup(t_warmup, t_max)
        now = elapsed(state, self.t_warmup)
        if now < t_warmup.value:
            return now / t_warmup.value
        start = max(t_warmup.value, t_max.value - t_cooldown.value)
        decayed = self._decay(min(now, start), t_warmup.value, t_scale.value)
        if now < start or t_cooldown.value == 0:
            return decayed
        share = min(1.0, (now - start) / t_cooldown.value)
        return decayed + share * (self.alpha_f_cooldown - decayed)

    def _decay(self, now: float, t_warmup: float, t_scale: float) -> float:
        stretch = (now - t_warmup + t_scale) / t_scale
        return self.alpha_f_decay + (1 - self.alpha_f_decay) / math.sqrt(stretch)
