"""Learning-rate schedules as functions of training time.

A schedule maps ``(state, ssr)`` to a multiplier of the initial learning rate. It reads the clock of
the run and keeps no state of its own, so its value after a resume is its value without one.
``ssr``, the scale schedule ratio, stretches every time that a schedule was given.
"""

from typing import Protocol, runtime_checkable

from composer.core.state import State
from composer.core.time import Time
from composer.optim.curves import cosine, linear, polynomial
from composer.optim.schedule_time import convert_time, elapsed, fraction_done


@runtime_checkable
class ComposerScheduler(Protocol):
    """What a schedule is: a callable from the state of a run to a learning-rate multiplier."""

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier of the initial learning rate now.

        Args:
            state: The run, whose timestamp and duration the schedule reads.
            ssr: Scale schedule ratio, by which the times of the schedule are multiplied.
        """
        raise NotImplementedError


class StepScheduler(ComposerScheduler):
    """Multiplies the learning rate by ``gamma`` after every ``step_size``.

    Args:
        step_size: Time between two decays.
        gamma: Factor of each decay.
    """

    def __init__(self, step_size: str | Time, gamma: float = 0.1) -> None:
        self.step_size = step_size
        self.gamma = gamma

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now."""
        step_size = convert_time(self.step_size, state, ssr)
        if step_size.value <= 0:
            raise ValueError(
                f"step_size={self.step_size} is no time at all in this run; it must be at least "
                "one unit."
            )
        return self.gamma ** int(elapsed(state, self.step_size) / step_size.value)


class MultiStepScheduler(ComposerScheduler):
    """Multiplies the learning rate by ``gamma`` at each milestone.

    Args:
        milestones: Times of the decays; they need not share a unit.
        gamma: Factor of each decay.
    """

    def __init__(self, milestones: list[str | Time], gamma: float = 0.1) -> None:
        self.milestones = milestones
        self.gamma = gamma

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now."""
        passed = (convert_time(m, state, ssr).value <= elapsed(state, m) for m in self.milestones)
        return self.gamma ** sum(passed)


class ConstantScheduler(ComposerScheduler):
    """Multiplies the learning rate by ``alpha`` until ``t_max`` and by 1 after it.

    Args:
        alpha: Multiplier.
        t_max: End of the schedule.
    """

    def __init__(self, alpha: float = 1.0, t_max: str | Time = "1dur") -> None:
        self.alpha = alpha
        self.t_max = t_max

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now."""
        t_max = convert_time(self.t_max, state, ssr)
        return self.alpha if elapsed(state, self.t_max) < t_max.value else 1.0


class LinearScheduler(ComposerScheduler):
    """Goes from ``alpha_i`` to ``alpha_f`` in a straight line until ``t_max``, then stays.

    Args:
        alpha_i: First multiplier.
        alpha_f: Last multiplier.
        t_max: End of the schedule.
    """

    def __init__(
        self, alpha_i: float = 1.0, alpha_f: float = 0.0, t_max: str | Time = "1dur"
    ) -> None:
        self.alpha_i = alpha_i
        self.alpha_f = alpha_f
        self.t_max = t_max

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now."""
        return linear(fraction_done(state, self.t_max, ssr), self.alpha_i, self.alpha_f)


class ExponentialScheduler(ComposerScheduler):
    """Decays the learning rate smoothly by ``gamma`` per ``decay_period``.

    Args:
        gamma: Factor per period.
        decay_period: Time of one full decay.
    """

    def __init__(self, gamma: float, decay_period: str | Time = "1ep") -> None:
        self.gamma = gamma
        self.decay_period = decay_period

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now."""
        period = convert_time(self.decay_period, state, ssr)
        if period.value <= 0:
            raise ValueError(
                f"decay_period={self.decay_period} is no time at all in this run; it must be at "
                "least one unit."
            )
        return self.gamma ** (elapsed(state, self.decay_period) / period.value)


class CosineAnnealingScheduler(ComposerScheduler):
    """Falls from 1 to ``alpha_f`` along half a cosine until ``t_max``, then stays.

    Args:
        t_max: End of the schedule.
        alpha_f: Last multiplier.
    """

    def __init__(self, t_max: str | Time = "1dur", alpha_f: float = 0.0) -> None:
        self.t_max = t_max
        self.alpha_f = alpha_f

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now."""
        return cosine(fraction_done(state, self.t_max, ssr), self.alpha_f)


class CosineAnnealingWarmRestartsScheduler(ComposerScheduler):
    """Falls along half a cosine and starts again, each time for ``t_mult`` times as long.

    Args:
        t_0: Length of the first fall.
        t_mult: Factor from one length to the next.
        alpha_f: Multiplier at the end of each fall.
    """

    def __init__(self, t_0: str | Time, t_mult: float = 1.0, alpha_f: float = 0.0) -> None:
        self.t_0 = t_0
        self.t_mult = t_mult
        self.alpha_f = alpha_f

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now.

        Raises:
            ValueError: If ``t_mult`` has shortened the fall to nothing.
        """
        t_0 = convert_time(self.t_0, state, ssr)
        length, since_restart = t_0.value, elapsed(state, self.t_0)
        while length > 0 and since_restart >= length:
            since_restart -= length
            length = int(self.t_mult * length)
        if length <= 0:
            raise ValueError(
                "Interval between restarts for cosine annealing/warm restarts scheduler has "
                f"decayed to 0: t_0={self.t_0}, t_mult={self.t_mult}; use a longer t_0, or a "
                "t_mult of at least 1."
            )
        return cosine(since_restart / length, self.alpha_f)


class PolynomialScheduler(ComposerScheduler):
    """Falls from 1 to ``alpha_f`` as a power of the time that is left until ``t_max``, then stays.

    Args:
        power: The power.
        t_max: End of the schedule.
        alpha_f: Last multiplier.
    """

    def __init__(self, power: float, t_max: str | Time = "1dur", alpha_f: float = 0.0) -> None:
        self.t_max = t_max
        self.power = power
        self.alpha_f = alpha_f

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Returns the multiplier now."""
        return polynomial(fraction_done(state, self.t_max, ssr), self.power, self.alpha_f)
