"""Frees the outputs of the forward pass early."""

import torch

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State


class FreeOutputs(Callback):
    """Drops the model's outputs once the loss is there, to save memory during the backward pass.

    Training metrics read the outputs after the backward pass, so they cannot be used with it.
    """

    def after_loss(self, state: State, logger: Logger) -> None:
        """Replaces the outputs by an empty tensor."""
        del logger
        state.outputs = torch.Tensor()
