"""LayerFreezing: the earliest layers stop training first, which saves their backward passes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.iter_helpers import ensure_tuple

__all__ = ["LayerFreezing", "freeze_layers"]


def freeze_layers(
    model: torch.nn.Module,
    optimizers: Optimizer | Sequence[Optimizer],
    current_duration: float,
    freeze_start: float = 0.5,
    freeze_level: float = 1.0,
) -> tuple[int, float]:
    """Freezes the share of layers that is due now; returns how many that are, and the share.

    Layers are the modules without children that have parameters, in the order of their definition;
    the last one is never frozen.

    Args:
        model: The model.
        optimizers: Its optimizers, which forget frozen parameters.
        current_duration: The share of training that is over, 0 to 1.
        freeze_start: When freezing begins, as such a share.
        freeze_level: The share of layers that are frozen at the end of training.
    """
    share = _freeze_schedule(current_duration, freeze_start, freeze_level)
    layers = [
        module
        for module in model.modules()
        if next(module.children(), None) is None and next(module.parameters(), None) is not None
    ]
    depth = max(0, int(share * (len(layers) - 1)))
    frozen = {parameter for layer in layers[:depth] for parameter in layer.parameters()}
    # A parameter that a later layer shares is trained there.
    frozen -= {parameter for layer in layers[depth:] for parameter in layer.parameters()}
    for parameter in frozen:
        parameter.requires_grad_(False)
        parameter.grad = None
    for optimizer in ensure_tuple(optimizers):
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if p not in frozen]
        for parameter in frozen:
            optimizer.state.pop(parameter, None)
    return depth, share


def _freeze_schedule(current_duration: float, freeze_start: float, freeze_level: float) -> float:
    """Returns the share of layers to be frozen: a line from ``freeze_start`` to the end."""
    if current_duration <= freeze_start:
        return 0.0
    return freeze_level * (current_duration - freeze_start) / (1 - freeze_start)


class LayerFreezing(Algorithm):
    """Freezes more and more layers, from the first on, at each epoch's end.

    Logs ``layer_freezing/layers_frozen`` and ``layer_freezing/percentage_frozen``.

    Args:
        freeze_start: When freezing begins, as a share of training.
        freeze_level: The share of layers that are frozen at the end of training.
    """

    def __init__(self, freeze_start: float = 0.5, freeze_level: float = 1.0) -> None:
        for name, value in (("freeze_start", freeze_start), ("freeze_level", freeze_level)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value!r} must be between 0 and 1.")
        self.freeze_start = freeze_start
        self.freeze_level = freeze_level
        self._frozen_at = 0.0

    @property
    def find_unused_parameters(self) -> bool:
        """Frozen parameters get no gradients, which DDP must be told."""
        return True

    def match(self, event: Event, state: State) -> bool:
        """Matches at the end of epochs, and after loading what had frozen layers."""
        return event is Event.EPOCH_END or (event is Event.AFTER_LOAD and self._frozen_at > 0)

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Freezes what is due."""
        if event is Event.EPOCH_END:
            elapsed = state.get_elapsed_duration()
            assert elapsed is not None
            self._frozen_at = float(elapsed)
        depth, share = freeze_layers(
            state.model, state.optimizers, self._frozen_at, self.freeze_start, self.freeze_level
        )
        if event is Event.EPOCH_END:
            logger.log_metrics(
                {
                    "layer_freezing/layers_frozen": depth,
                    "layer_freezing/percentage_frozen": share,
                }
            )
        return None

    def state_dict(self) -> dict[str, Any]:
        """Returns when layers were frozen last, from which follows which they are."""
        return {**super().state_dict(), "frozen_at": self._frozen_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes it back; older releases saved nothing."""
        self._frozen_at = state.get("frozen_at", 0.0)
