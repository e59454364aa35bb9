"""Where schedules meet torch: composer schedules as a LambdaLR, torch schedulers stretched."""

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial

from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    MultiStepLR,
    StepLR,
)

from composer.core.state import State
from composer.optim.schedules import ComposerScheduler


def compile_composer_scheduler(
    scheduler: ComposerScheduler, state: State, ssr: float = 1.0
) -> LambdaLR:
    """Makes a torch scheduler that asks ``scheduler`` about the live state each time it steps.

    Args:
        scheduler: A schedule; a plain function of the state alone will do while ``ssr`` is 1.
        state: The run; its one optimizer is driven.
        ssr: Scale schedule ratio.

    Raises:
        NotImplementedError: If the run has several optimizers.
        ValueError: If ``ssr`` is not 1 and the schedule cannot take it.
    """
    return compile_composer_schedulers([scheduler], state, ssr)


def compile_composer_schedulers(
    schedulers: Sequence[ComposerScheduler], state: State, ssr: float = 1.0
) -> LambdaLR:
    """Makes one torch scheduler of several schedules, whose multipliers are multiplied."""
    optimizers = state.optimizers
    if len(optimizers) != 1:
        raise NotImplementedError(
            "A composer scheduler drives exactly one optimizer, but the run has "
            f"{len(optimizers)}; give each optimizer a torch scheduler instead."
        )
    multipliers = [_multiplier(scheduler, state, ssr) for scheduler in schedulers]
    return LambdaLR(optimizers[0], lambda _: math.prod(each() for each in multipliers))


def _multiplier(scheduler: ComposerScheduler, state: State, ssr: float) -> Callable[[], float]:
    takes_ssr = "ssr" in inspect.signature(scheduler).parameters
    if not takes_ssr and ssr != 1.0:
        raise ValueError(
            f"The scheduler {scheduler!r} has no parameter `ssr`, so it cannot follow "
            f"scale_schedule_ratio={ssr}; add the parameter `ssr` or leave the ratio at 1.0."
        )

    return partial(scheduler, state, ssr) if takes_ssr else partial(scheduler, state)


def scale_pytorch_scheduler(scheduler: LRScheduler, ssr: float) -> None:
    """Multiplies the times of a torch scheduler by ``ssr``, in place and rounded down.

    Args:
        scheduler: StepLR, MultiStepLR, CosineAnnealingLR, CosineAnnealingWarmRestarts or
            ExponentialLR.
        ssr: Scale schedule ratio; 0.5 makes the schedule half as long.

    Raises:
        ValueError: If the ratio is not positive, or the scheduler is of another kind.
    """
    if ssr <= 0:
        raise ValueError(f"scale_schedule_ratio must be positive, but got {ssr}.")
    if ssr == 1.0:
        return
    if isinstance(scheduler, StepLR):
        scheduler.step_size = int(scheduler.step_size * ssr)
    elif isinstance(scheduler, MultiStepLR):
        scheduler.milestones = type(scheduler.milestones)(
            {int(milestone * ssr): count for milestone, count in scheduler.milestones.items()}
        )
    elif isinstance(scheduler, CosineAnnealingLR):
        scheduler.T_max = int(scheduler.T_max * ssr)
    elif isinstance(scheduler, CosineAnnealingWarmRestarts):
        scheduler.T_0 = int(scheduler.T_0 * ssr)
        scheduler.T_i = scheduler.T_0
    elif isinstance(scheduler, ExponentialLR):
        scheduler.gamma = scheduler.gamma ** (1 / ssr)
    else:
        raise ValueError(
            f"scale_schedule_ratio={ssr} cannot be applied to a {type(scheduler).__name__}; use a "
            "composer scheduler, or scale the schedule by hand and leave the ratio at 1.0."
        )
