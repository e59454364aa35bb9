"""Learning-rate schedules that start with a warm-up from zero."""

import warnings
from collections.abc import Callable

from composer.core.state import State
from composer.core.time import Time
from composer.optim.curves import cosine, linear, one_minus_sqrt, polynomial
from composer.optim.schedule_time import (
    check_reaches_end,
    convert_time,
    elapsed,
    end_of_run,
    warn_of_long_warmup,
)
from composer.optim.schedules import ComposerScheduler, LinearScheduler, MultiStepScheduler


class _Warmup:
    """The first part of a schedule: from 0 to ``alpha`` in a straight line until ``t_warmup``.

    Args:
        t_warmup: Length of the warm-up.
        scale_warmup: Stretches the slope of the warm-up by the scale schedule ratio, not its end.
        alpha: Multiplier at its end.
    """

    def __init__(self, t_warmup: str | Time, scale_warmup: bool, alpha: float = 1.0) -> None:
        self.t_warmup = t_warmup
        self.scale_warmup = scale_warmup
        self.warmup_scheduler = LinearScheduler(alpha_i=0.0, alpha_f=alpha, t_max=t_warmup)

    def _warming_up(self, state: State, ssr: float) -> tuple[Time, float | None]:
        """Returns the converted warm-up time, and the multiplier while it lasts."""
        # The ratio stretches the slope only, never the end. Recipes rely on the old numbers, which
        # jump at the end of a stretched warm-up and stay flat after a shortened one.
        t_warmup = convert_time(self.t_warmup, state)
        if t_warmup.value == 0:
            warnings.warn(
                f"The warmup duration is 0 (t_warmup={self.t_warmup}). A share of the duration is "
                "rounded down to a whole number in the unit of max_duration.",
                stacklevel=3,
            )
        if elapsed(state, self.t_warmup) < t_warmup.value:
            return t_warmup, self.warmup_scheduler(state, ssr if self.scale_warmup else 1.0)
        return t_warmup, None

    def _after_warmup(
        self, state: State, ssr: float, t_max: str | Time
    ) -> tuple[float, float | None]:
        """Returns the share of the way from warm-up to ``t_max``, and the warm-up multiplier.

        The multiplier is None once the warm-up is over.

        Raises:
            ValueError: If the two times cannot be compared, or the schedule ends before the run.
        """
        end = convert_time(t_max, state, ssr)
        t_warmup, multiplier = self._warming_up(state, ssr)
        if t_warmup.unit is not end.unit:
            raise ValueError(
                f"Cannot use warmup scheduler with t_warmup={self.t_warmup} (unit "
                f"{t_warmup.unit.value}) and t_max={t_max} (unit {end.unit.value}, "
                f"max_duration={state.max_duration}): give both in one unit; epochs count as "
                "batches."
            )
        check_reaches_end(end, state)
        warn_of_long_warmup(t_warmup, end)
        since = elapsed(state, self.t_warmup) - t_warmup.value
        way = end.value - elapsed(state, t_max) + since
        return (min(1.0, since / way) if way > 0 else 0.0), multiplier


class MultiStepWithWarmupScheduler(_Warmup, ComposerScheduler):
    """Warms up, then multiplies the learning rate by ``gamma`` at each milestone.

    Args:
        t_warmup: Length of the warm-up.
        milestones: Times of the decays, counted from the start of training.
        gamma: Factor of each decay.
        scale_warmup: Stretches the slope of the warm-up by the scale schedule ratio, not its end.
    """

    def __init__(
        self,
        t_warmup: str | Time,
        milestones: list[str | Time],
        gamma: float = 0.1,
        scale_warmup: bool = False,
    ) -> None:
        super().__init__(t_warmup, scale_warmup)
        self.milestones = milestones
        self.gamma = gamma
        self.step_scheduler = MultiStepScheduler(milestones, gamma)

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now."""
        t_warmup, multiplier = self._warming_up(state, ssr)
        warn_of_long_warmup(t_warmup, end_of_run(state))
        return self.step_scheduler(state, ssr) if multiplier is None else multiplier


class LinearWithWarmupScheduler(_Warmup, ComposerScheduler):
    """Warms up to ``alpha_i``, then goes to ``alpha_f`` in a straight line until ``t_max``.

    Args:
        t_warmup: Length of the warm-up, in a unit that can be compared with that of ``t_max``.
        alpha_i: Multiplier after the warm-up.
        alpha_f: Last multiplier.
        t_max: End of the schedule, not before the end of the run.
        scale_warmup: Stretches the slope of the warm-up by the scale schedule ratio, not its end.
    """

    def __init__(
        self,
        t_warmup: str | Time,
        alpha_i: float = 1.0,
        alpha_f: float = 0.0,
        t_max: str | Time = "1dur",
        scale_warmup: bool = False,
    ) -> None:
        super().__init__(t_warmup, scale_warmup, alpha_i)
        self.alpha_i = alpha_i
        self.alpha_f = alpha_f
        self.t_max = t_max

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now."""
        done, multiplier = self._after_warmup(state, ssr, self.t_max)
        return linear(done, self.alpha_i, self.alpha_f) if multiplier is None else multiplier


class ConstantWithWarmupScheduler(ComposerScheduler):
    """Warms up to ``alpha`` and stays there.

    Args:
        t_warmup: Length of the warm-up, in a unit that can be compared with that of ``t_max``.
        alpha: Multiplier after the warm-up.
        t_max: End of the schedule, not before the end of the run.
        scale_warmup: Stretches the slope of the warm-up by the scale schedule ratio, not its end.
    """

    def __init__(
        self,
        t_warmup: str | Time,
        alpha: float = 1.0,
        t_max: str | Time = "1dur",
        scale_warmup: bool = False,
    ) -> None:
        self.t_warmup = t_warmup
        self.alpha = alpha
        self.t_max = t_max
        self.scale_warmup = scale_warmup
        self.scheduler = LinearWithWarmupScheduler(t_warmup, alpha, alpha, t_max, scale_warmup)

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now."""
        return self.scheduler(state, ssr)


class CosineAnnealingWithWarmupScheduler(_Warmup, ComposerScheduler):
    """Warms up, then falls from 1 to ``alpha_f`` along half a cosine until ``t_max``.

    Args:
        t_warmup: Length of the warm-up, in a unit that can be compared with that of ``t_max``.
        t_max: End of the schedule, not before the end of the run.
        alpha_f: Last multiplier.
        scale_warmup: Stretches the slope of the warm-up by the scale schedule ratio, not its end.
    """

    def __init__(
        self,
        t_warmup: str | Time,
        t_max: str | Time = "1dur",
        alpha_f: float = 0.0,
        scale_warmup: bool = False,
    ) -> None:
        super().__init__(t_warmup, scale_warmup)
        self.t_max = t_max
        self.alpha_f = alpha_f

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now."""
        done, multiplier = self._after_warmup(state, ssr, self.t_max)
        return cosine(done, self.alpha_f) if multiplier is None else multiplier


class PolynomialWithWarmupScheduler(_Warmup, ComposerScheduler):
    """Warms up, then falls from 1 to ``alpha_f`` as a power of the time that is left.

    Args:
        t_warmup: Length of the warm-up, in a unit that can be compared with that of ``t_max``.
        power: The power.
        t_max: End of the schedule, not before the end of the run.
        alpha_f: Last multiplier.
        scale_warmup: Stretches the slope of the warm-up by the scale schedule ratio, not its end.
    """

    def __init__(
        self,
        t_warmup: str | Time,
        power: float = 2.0,
        t_max: str | Time = "1dur",
        alpha_f: float = 0.0,
        scale_warmup: bool = False,
    ) -> None:
        super().__init__(t_warmup, scale_warmup)
        self.power = power
        self.t_max = t_max
        self.alpha_f = alpha_f

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now."""
        done, multiplier = self._after_warmup(state, ssr, self.t_max)
        return polynomial(done, self.power, self.alpha_f) if multiplier is None else multiplier


class WarmupStableDecayScheduler(_Warmup, ComposerScheduler):
    """Warms up, stays at the full rate, and cools down to ``alpha_f`` at the end of ``t_max``.

    A checkpoint of the stable part goes on for any length: only the cool-down knows the end (WSD,
    arXiv 2404.06395). One minus the root of the share that has passed is the shape of cool-down
    that did best in arXiv 2405.18392.

    Args:
        t_warmup: Length of the warm-up, in a unit that can be compared with that of ``t_max``.
        t_cooldown: Length of the cool-down, before ``t_max``; likewise.
        t_max: End of the schedule, not before the end of the run.
        alpha_f: Last multiplier.
        shape: ``"1-sqrt"`` or ``"linear"``.
        scale_warmup: Stretches the slope of the warm-up by the scale schedule ratio, not its end.

    Raises:
        ValueError: For another shape.
    """

    def __init__(
        self,
        t_warmup: str | Time,
        t_cooldown: str | Time = "0.2dur",
        t_max: str | Time = "1dur",
        alpha_f: float = 0.0,
        shape: str = "1-sqrt",
        scale_warmup: bool = False,
    ) -> None:
        super().__init__(t_warmup, scale_warmup)
        if shape not in _COOLDOWNS:
            raise ValueError(f"shape={shape!r} is unknown; use one of {', '.join(_COOLDOWNS)}.")
        self.t_cooldown = t_cooldown
        self.t_max = t_max
        self.alpha_f = alpha_f
        self.shape = shape

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now.

        Raises:
            ValueError: If the times are in different units, or do not fit one after the other.
        """
        _, multiplier = self._after_warmup(state, ssr, self.t_max)
        end, cooldown = (convert_time(time, state, ssr) for time in (self.t_max, self.t_cooldown))
        warmup = convert_time(self.t_warmup, state)
        if cooldown.unit is not end.unit or warmup.value + cooldown.value > end.value:
            raise ValueError(
                f"t_warmup={warmup} and t_cooldown={cooldown} must be in the unit of t_max={end} "
                "(epochs count as batches) and fit into it."
            )
        if multiplier is not None:
            return multiplier
        since = elapsed(state, self.t_max) - (end.value - cooldown.value)
        if since <= 0:
            return 1.0
        return _COOLDOWNS[self.shape](
            since / cooldown.value if cooldown.value else 1.0, self.alpha_f
        )


_COOLDOWNS: dict[str, Callable[[float, float], float]] = {
    "1-sqrt": one_minus_sqrt,
    "linear": lambda x, alpha_f: linear(x, 1.0, alpha_f),
}
