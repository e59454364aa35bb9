"""Frees the outputs of the forward pass early."""

import torch

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State


class FreeOutputs(Callback):
    """Drops the model's outputs once the loss is there, to save memory during the backward pass.

    Training metrics read the outputs after the backward pass, so they cannot be used with it.
    """

    def fit_start(self, state: State, logger: Logger) -> None:
        """Refuses a model with training metrics."""
        if state.train_metrics:
            raise ValueError(
                "FreeOutputs drops the outputs before the training metrics read them: "
                f"{', '.join(state.train_metrics)}. Remove it, or let the model's "
                "get_metrics(is_train=True) return {}."
            )

    def after_loss(self, state: State, logger: Logger) -> None:
        """Replaces the outputs by an empty tensor."""
        state.outputs = torch.Tensor()
