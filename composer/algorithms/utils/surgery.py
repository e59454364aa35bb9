"""What algorithms that change a model share: when they run, how they print, what no match is."""

import inspect
import warnings
from typing import Any, Literal, TypeAlias

import torch

from composer.algorithms.warnings import NoEffectWarning
from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.state import State

OnNoMatch: TypeAlias = Literal["raise", "warn"]
"""What to do if a model has nothing that an algorithm could change."""


class NoMatchError(ValueError):
    """Says that a model has nothing that an algorithm could change."""


class ModelSurgery(Algorithm):
    """An algorithm that changes the model once, before it is sharded.

    A subclass keeps each argument of its constructor in an attribute of the same name: from these
    it is printed, and a checkpoint that needs it makes it again.

    Args:
        on_no_match: ``"raise"`` a `NoMatchError` if the model has nothing to change, or ``"warn"``.
    """

    def __init__(self, on_no_match: OnNoMatch = "raise") -> None:
        if on_no_match not in ("raise", "warn"):
            raise ValueError(f"on_no_match={on_no_match!r} is unknown; use 'raise' or 'warn'.")
        self.on_no_match: OnNoMatch = on_no_match

    def __repr__(self) -> str:
        names = inspect.signature(type(self).__init__).parameters
        values = {name: getattr(self, name) for name in names if name != "self"}
        # As releases print it that did not have the argument, so that their checkpoints compare.
        if self.on_no_match == "raise":
            values.pop("on_no_match", None)
        written = (f"{k}={v if isinstance(v, Event) else repr(v)}" for k, v in values.items())
        return f"{type(self).__name__}({','.join(written)})"

    @staticmethod
    def required_on_load() -> bool:
        """Tells that saved weights only fit a model that was changed in the same way."""
        return True

    def match(self, event: Event, state: State) -> bool:
        """Matches when the model has been built, but is neither sharded nor loaded."""
        return event == Event.INIT


def report_no_match(algorithm: str, wanted: str, on_no_match: OnNoMatch) -> None:
    """Raises, or warns, that an algorithm found nothing in the model that it could change."""
    message = f"{algorithm} changed nothing: the model has {wanted}."
    if on_no_match == "raise":
        raise NoMatchError(
            f"{message} Leave it out, mend its settings, or pass on_no_match='warn' to go on."
        )
    warnings.warn(f"{message} It has no effect.", NoEffectWarning, stacklevel=3)


def stays(module: torch.nn.Module, module_index: int) -> torch.nn.Module:
    """The policy for what an algorithm made before: it counts as a match, and is left as it is."""
    del module_index
    return module


def computes_as(module: torch.nn.Module, kind: type[torch.nn.Module]) -> bool:
    """Tells whether a module is of a class and computes what that class does.

    A subclass with a forward of its own cannot be replaced by what stands for the class.
    """
    own: Any = type(module).forward
    return isinstance(module, kind) and own is kind.forward
