"""Stops a run whose loss is not a number."""

from collections.abc import Mapping, Sequence

import torch

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State


class NaNMonitor(Callback):
    """Raises as soon as a training loss is NaN, before it can reach the weights.

    Looks at the loss of every micro-batch, which waits for the device each time.
    """

    def after_loss(self, state: State, logger: Logger) -> None:
        """Raises ``RuntimeError`` if the loss, or a part of it, is NaN."""
        loss = state.loss
        if isinstance(loss, torch.Tensor):
            if loss.isnan().any():
                raise RuntimeError("Train loss contains a NaN.")
        elif isinstance(loss, Mapping):
            for name, part in loss.items():
                if part.isnan().any():
                    raise RuntimeError(f"Train loss {name} contains a NaN.")
        elif isinstance(loss, Sequence) and not isinstance(loss, str):
            if any(part.isnan().any() for part in loss):
                raise RuntimeError("Train loss contains a NaN.")
        else:
            raise TypeError(
                f"A loss must be a tensor, or a sequence or dict of tensors, not {type(loss)}."
            )
