"""The interface of what changes training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.protocols import RunOrder
from composer.core.serializable import Serializable
from composer.core.state import State

_classes_by_name: dict[str, type[Algorithm]] = {}


class Algorithm(Serializable, ABC):
    """Changes training: the model, the batch, the loss, or what the optimizer does.

    A subclass says in `match` at which events it acts and in `apply` what it does. Arguments of the
    constructor are ignored here, for subclasses that pass theirs on.
    """

    run_order: ClassVar[RunOrder] = "middle"
    """Whether to run before all other algorithms ("first"), after them ("last"), or among them."""

    interpolate_loss: bool = False
    """Whether it replaces the loss by a mixture of losses; two of these do not go together."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _classes_by_name[cls.__qualname__] = cls

    @property
    def find_unused_parameters(self) -> bool:
        """Whether some parameters may get no gradient, which DDP must be told."""
        return False

    @property
    def backwards_create_graph(self) -> bool:
        """Whether the backward pass must itself be differentiable."""
        return False

    @staticmethod
    def required_on_load() -> bool:
        """Whether a checkpoint trained with it only loads into a model that it has changed."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Returns the text from which `required_on_load` algorithms are made again."""
        return {"repr": repr(self)}

    @abstractmethod
    def match(self, event: Event, state: State) -> bool:
        """Says whether to apply it at this event."""

    @abstractmethod
    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the state; what it returns is kept in the trace of the event."""


def algorithm_class(name: str) -> type[Algorithm] | None:
    """Returns the algorithm class of that name, if its module has been imported."""
    return _classes_by_name.get(name)
