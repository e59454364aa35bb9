"""Optimizers over the right parameters: frozen ones left out, groups with settings of their own."""

import logging
import re
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from llmfoundry import registry
from llmfoundry.utils.registry_utils import construct_from_registry

__all__ = ["build_optimizer"]

log = logging.getLogger(__name__)


def build_optimizer(
    model: torch.nn.Module, name: str, optimizer_config: dict[str, Any]
) -> Optimizer:
    """Builds an optimizer for the parameters of a model.

    Args:
        model: The model; parameters that match ``disable_grad`` are frozen in it.
        name: A registered optimizer.
        optimizer_config: Its arguments, and ``disable_grad`` and ``param_groups`` as the recipe
            manual describes them.
    """
    settings = dict(optimizer_config)
    if "params" in settings:
        raise ValueError(
            "The `params` will be automatically extracted from the model and optimizer config. "
            "Please remove it from the optimizer config."
        )
    settings["params"] = _extract_param_groups(model, settings)
    if getattr(registry.optimizers.get(name), "takes_model", False):
        settings["model"] = model
    return construct_from_registry(
        name=name,
        registry=registry.optimizers,
        pre_validation_function=Optimizer,
        kwargs=settings,
    )


def _extract_param_groups(
    model: torch.nn.Module, optimizer_config: dict[str, Any] | None = None
) -> Iterable[torch.Tensor] | list[dict[str, Any]]:
    """Freezes what ``disable_grad`` matches and sorts the rest into groups.

    Both keys are taken out of ``optimizer_config``.
    """
    if optimizer_config is None:
        return model.parameters()
    _freeze(model, optimizer_config.pop("disable_grad", None))
    groups = optimizer_config.pop("param_groups", None)
    if not groups:
        return model.parameters()
    remaining = OrderedDict(model.named_parameters())
    sorted_out = []
    for group in groups:
        settings = dict(group)
        pattern = settings.pop("param_str_match", None)
        if pattern is None:
            raise ValueError(
                f"Each of optimizer.param_groups needs a param_str_match; {group} has none."
            )
        matched = [name for name in remaining if re.search(pattern, name)]
        if not matched:
            raise ValueError(
                f"optimizer.param_groups: {pattern!r} matches no parameter that an earlier group "
                "has left, so its settings would have no effect."
            )
        log.info("Parameters of the group %s: %s", pattern, matched)
        sorted_out.append({"params": [remaining.pop(name) for name in matched], **settings})
    return [{"params": list(remaining.values())}, *sorted_out]


def _freeze(model: torch.nn.Module, patterns: str | list[str] | None) -> None:
    for pattern in [patterns] if isinstance(patterns, str) else patterns or []:
        matched = [
            parameter for name, parameter in model.named_parameters() if re.search(pattern, name)
        ]
        if not matched:
            raise ValueError(
                f"optimizer.disable_grad: {pattern!r} matches no parameter, so it would freeze "
                "nothing."
            )
        for parameter in matched:
            parameter.requires_grad = False
