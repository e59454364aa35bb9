"""Hands the parameters that sharding made to the optimizer that was built on the old ones."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch.optim import Optimizer

from composer.distributed.wrapping import plain_name

__all__ = ["sync_optimizer_and_model_params", "update_optimizer_modules"]


def _names(model: torch.nn.Module) -> dict[torch.nn.Parameter, str]:
    return {parameter: plain_name(name) for name, parameter in model.named_parameters()}


def update_optimizer_modules(
    optimizer: Optimizer,
    model: torch.nn.Module,
    orig_param_to_name: dict[torch.nn.Parameter, str],
) -> None:
    """Puts the model's parameters in the place of those that had their names.

    Args:
        optimizer: The optimizer; its groups keep their order and settings.
        model: The model as it is now.
        orig_param_to_name: The name of each parameter that the optimizer was built with.

    Raises:
        ValueError: If the optimizer has a parameter that is not the model's.
    """
    by_name = {name: parameter for parameter, name in _names(model).items()}
    groups: list[list[torch.nn.Parameter]] = []
    for group in optimizer.param_groups:
        strangers = [p for p in group["params"] if orig_param_to_name.get(p) not in by_name]
        if strangers:
            raise ValueError(
                "The same model must be passed to the optimizer and trainer: the optimizer has "
                f"{len(strangers)} parameter(s) that the model does not have, the first of shape "
                f"{tuple(strangers[0].shape)}"
            )
        groups.append([by_name[orig_param_to_name[p]] for p in group["params"]])
    if optimizer.state:
        warnings.warn(
            "The optimizer had stepped before the model was sharded. Its state is cleared; load it "
            "from a checkpoint instead.",
            stacklevel=2,
        )
        optimizer.state.clear()
    for group, parameters in zip(optimizer.param_groups, groups, strict=True):
        group["params"] = parameters


@contextlib.contextmanager
def sync_optimizer_and_model_params(
    optimizer: Optimizer | None, model: torch.nn.Module
) -> Iterator[None]:
    """Has the optimizer follow what happens to the model's parameters in the block.

    Raises:
        ValueError: If the optimizer has a parameter that is not the model's.
    """
    before = _names(model)
    yield
    if optimizer is not None:
        update_optimizer_modules(optimizer, model, before)
