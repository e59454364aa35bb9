"""Ghost batch norm: batch statistics over small parts of a batch (Hoffer et al., 1705.08741)."""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.optim import Optimizer

from composer.algorithms.utils.surgery import (
    ModelSurgery,
    OnNoMatch,
    computes_as,
    report_no_match,
)
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.module_surgery import replace_module_classes

M = TypeVar("M", bound=torch.nn.Module)


class _GhostBatchNorm(torch.nn.Module):
    """Applies a batch norm to parts of a batch, one after another.

    Args:
        base_batchnorm: The layer, whose parameters and statistics it goes on with.
        ghost_batch_size: How many samples a part has at most.
    """

    def __init__(self, base_batchnorm: BatchNorm, ghost_batch_size: int = 32) -> None:
        super().__init__()
        _check_size(ghost_batch_size)
        self.ghost_batch_size = ghost_batch_size
        self.batchnorm = base_batchnorm

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalises each part by its own statistics; in evaluation, all by the running ones."""
        if not self.training:
            return self.batchnorm(input)
        batch_size = input.shape[0]
        if batch_size < self.ghost_batch_size:
            raise ValueError(
                f"The batch of {batch_size} samples is smaller than ghost_batch_size="
                f"{self.ghost_batch_size}; use larger (micro-)batches or a smaller ghost batch, "
                "and drop_last=True if it is the last batch of an epoch."
            )
        n_parts = math.ceil(batch_size / self.ghost_batch_size)
        momentum = self.batchnorm.momentum
        if momentum is not None:  # so that running statistics move as far as in one whole batch
            self.batchnorm.momentum = momentum / n_parts
        normed = [self.batchnorm(part) for part in input.chunk(n_parts, dim=0)]
        self.batchnorm.momentum = momentum
        return torch.cat(normed, dim=0)


class GhostBatchNorm1d(_GhostBatchNorm):
    """`torch.nn.BatchNorm1d` over small parts of a batch."""


class GhostBatchNorm2d(_GhostBatchNorm):
    """`torch.nn.BatchNorm2d` over small parts of a batch."""


class GhostBatchNorm3d(_GhostBatchNorm):
    """`torch.nn.BatchNorm3d` over small parts of a batch."""


_GHOSTS: dict[type[BatchNorm], type[_GhostBatchNorm]] = {
    torch.nn.BatchNorm1d: GhostBatchNorm1d,
    torch.nn.BatchNorm2d: GhostBatchNorm2d,
    torch.nn.BatchNorm3d: GhostBatchNorm3d,
}


def _check_size(ghost_batch_size: int) -> None:
    if ghost_batch_size < 1:
        raise ValueError(f"ghost_batch_size={ghost_batch_size} must be at least 1.")


def apply_ghost_batchnorm(
    model: M,
    ghost_batch_size: int = 32,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    on_no_match: OnNoMatch = "raise",
) -> M:
    """Wraps every batch norm so that it normalises small parts of a batch; changes the model.

    The layers keep their parameters, so optimizers need no change.

    Args:
        model: The model; one that is itself a batch norm is not replaced.
        ghost_batch_size: How many samples a part has at most; batches must have that many.
        optimizers: Accepted for the sake of a common signature.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no batch norm.

    Raises:
        NoMatchError: If there is no batch norm.
    """
    _check_size(ghost_batch_size)

    def wrapped(module: Any, index: int) -> torch.nn.Module | None:
        for kind, ghost in _GHOSTS.items():
            if computes_as(module, kind):
                return ghost(module, ghost_batch_size).train(module.training)
        return None

    policies: dict[Any, Any] = {
        _GhostBatchNorm: lambda module, index: wrapped(module.batchnorm, index),
        BatchNorm: wrapped,
    }
    if not replace_module_classes(model, policies, optimizers):
        report_no_match("GhostBatchNorm", "no BatchNorm1d, 2d or 3d", on_no_match)
    return model


class GhostBatchNorm(ModelSurgery):
    """Computes batch statistics over small parts of a batch, which regularises large batches.

    Args:
        ghost_batch_size: How many samples a part has at most; micro-batches must have that many.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no batch norm.
    """

    def __init__(self, ghost_batch_size: int = 32, on_no_match: OnNoMatch = "raise") -> None:
        super().__init__(on_no_match)
        _check_size(ghost_batch_size)
        self.ghost_batch_size = ghost_batch_size

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> int | None:
        """Wraps the batch norms of the model."""
        apply_ghost_batchnorm(
            state.model, self.ghost_batch_size, state.optimizers, self.on_no_match
        )
        if logger is not None:
            count = sum(isinstance(module, _GhostBatchNorm) for module in state.model.modules())
            logger.log_hyperparameters({"GhostBatchNorm/num_new_modules": count})
        return None
