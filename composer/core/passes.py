"""Passes: how the algorithms that act at one event are put in order."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from composer.core.algorithm import Algorithm
from composer.core.event import Event

T = TypeVar("T")

AlgorithmPass: TypeAlias = Callable[[Sequence[Algorithm], Event], Sequence[Algorithm]]
"""Takes the algorithms that act at an event and returns them in the order to run."""


class NotIntendedUseWarning(Warning):
    """Says that things are used together that were not made for it."""


def sort_to_front(list_to_sort: Sequence[T], cls: type[Any]) -> Sequence[T]:
    """Returns the list with the instances of ``cls`` first and everything else as it was."""
    return sorted(list_to_sort, key=lambda item: not isinstance(item, cls))


def sort_to_back(list_to_sort: Sequence[T], cls: type[Any]) -> Sequence[T]:
    """Returns the list with the instances of ``cls`` last and everything else as it was."""
    return sorted(list_to_sort, key=lambda item: isinstance(item, cls))


def _run_order(algorithm: Any) -> str:
    # of the class that it stands for: a test's stand-in made to a class has it there alone
    return getattr(algorithm.__class__, "run_order", "middle")


def sort_selective_backprop_first(
    algorithms: Sequence[Algorithm], event: Event
) -> Sequence[Algorithm]:
    """Puts algorithms that must see the whole batch first, such as SelectiveBackprop."""
    del event
    return sorted(algorithms, key=lambda algorithm: _run_order(algorithm) != "first")


def sort_low_precision_layernorm_last(
    algorithms: Sequence[Algorithm], event: Event
) -> Sequence[Algorithm]:
    """Puts algorithms that replace what others make last, such as LowPrecisionLayerNorm."""
    del event
    return sorted(algorithms, key=lambda algorithm: _run_order(algorithm) == "last")


def set_filo_order(algorithms: Sequence[Algorithm], event: Event) -> Sequence[Algorithm]:
    """Reverses the order at after-events, so that what was done first is undone last."""
    return list(reversed(algorithms)) if event.name.startswith("AFTER_") else algorithms


def warn_if_multiple_loss_interpolation(
    algorithms: Sequence[Algorithm], event: Event
) -> Sequence[Algorithm]:
    """Warns if several algorithms mix losses, of which only one can be right."""
    mixing = [
        algorithm for algorithm in algorithms if getattr(algorithm, "interpolate_loss", False)
    ]
    if len(mixing) > 1:
        names = ", ".join(type(algorithm).__name__ for algorithm in mixing)
        warnings.warn(
            f"Multiple algorithms interpolate the loss at {event}: {names}. Their mixtures do not "
            "compose; leave out all but one",
            category=NotIntendedUseWarning,
            stacklevel=2,
        )
    return algorithms


DEFAULT_PASSES: tuple[AlgorithmPass, ...] = (
    sort_selective_backprop_first,
    sort_low_precision_layernorm_last,
    set_filo_order,
    warn_if_multiple_loss_interpolation,
)
