"""A wrapper around the user's model that spreads weights and moments in a way of its own."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["ModelWrapper"]


class ModelWrapper(torch.nn.Module):
    """Stands for its ``module`` in training, and gathers for checkpoints what it has spread.

    All ranks call each method, and may wait for each other in it.
    """

    module: Any

    def get_model_state(self) -> dict[str, Any]:
        """Returns the weights and buffers by their names in ``module``; only rank 0 gets any."""
        raise NotImplementedError

    def set_model_state(
        self, state: dict[str, Any], *, strict: bool
    ) -> tuple[list[str], list[str]]:
        """Takes weights and buffers; returns the names that are missing and not expected.

        Raises:
            RuntimeError: If the names (``strict``) or shapes do not agree; all of them are listed.
        """
        raise NotImplementedError

    def get_optimizer_state(self) -> dict[str, Any]:
        """Returns moments and parameter groups, by the parameters' names; only rank 0 gets any."""
        raise NotImplementedError

    def set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Takes what `get_optimizer_state` returned, here or from a model that is not wrapped.

        Raises:
            ValueError: If a parameter group was not saved.
        """
        raise NotImplementedError
