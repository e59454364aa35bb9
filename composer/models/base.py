"""What the trainer asks of a model."""

from __future__ import annotations

import abc
import copy
from collections.abc import Sequence
from typing import Any

import torch

from composer.core.logger import Logger
from composer.core.types import Batch

__all__ = ["ComposerModel"]


class ComposerModel(torch.nn.Module, abc.ABC):
    """A module that knows its loss, and its metrics if it has any.

    A model may offer more, which the trainer and its plug-ins look for by name:
    ``num_loss_tokens(batch)`` (how many targets the loss of a batch is a mean over; None if it is
    one over samples), ``flops_per_batch(batch)``, ``fsdp_wrap_fn(module)``,
    ``activation_checkpointing_fn(module)``, ``param_init_fn(module)`` and ``get_metadata()``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.logger: Logger | None = None
        """The logger of the run, from the moment that a trainer has the model."""

    def __deepcopy__(self, memo: dict[int, Any]) -> ComposerModel:
        # A copy of the weights must not copy the run's log files and connections.
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for key, value in self._state_of_copy().items():
            vars(copied)[key] = value if key == "logger" else copy.deepcopy(value, memo)
        return copied

    def __copy__(self) -> ComposerModel:
        copied = type(self).__new__(type(self))
        vars(copied).update(self._state_of_copy())
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**self._state_of_copy(), "logger": None}

    def _state_of_copy(self) -> dict[str, Any]:
        # What model.compile() made calls this object, from wherever it is copied to.
        return {key: self.__dict__[key] for key in self.__dict__ if key != "_compiled_call_impl"}

    @abc.abstractmethod
    def forward(self, batch: Batch) -> Any:
        """Returns the outputs for a batch, which ``loss`` and the metrics take."""

    @abc.abstractmethod
    def loss(
        self, outputs: Any, batch: Batch, *args: Any, **kwargs: Any
    ) -> torch.Tensor | Sequence[torch.Tensor] | dict[str, torch.Tensor]:
        """Returns the loss, or several: their sum is trained on.

        A dict with the key ``total`` is trained on that value; the others are only logged.
        """

    def eval_forward(self, batch: Batch, outputs: Any | None = None) -> Any:
        """Returns the outputs that metrics take.

        Args:
            batch: The batch.
            outputs: Outputs of ``forward`` for this batch, where training has them already.
        """
        return self.forward(batch) if outputs is None else outputs

    def update_metric(self, batch: Batch, outputs: Any, metric: Any) -> dict[str, Any] | None:
        """Adds a batch to a metric.

        Args:
            batch: The batch.
            outputs: What ``eval_forward`` returned for it.
            metric: One of the metrics of ``get_metrics``.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has metrics but no update_metric; write update_metric(batch, "
            "outputs, metric), which calls metric.update(outputs, targets)."
        )

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        """Returns the metrics by name.

        Args:
            is_train: Whether for training or for evaluation.
        """
        return {}
