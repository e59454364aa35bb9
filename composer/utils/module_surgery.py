"""Replacing layers inside a model, and the optimizer's parameters with them."""

from __future__ import annotations

import itertools
import logging
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from composer.utils.gradients import as_sharded
from composer.utils.iter_helpers import ensure_tuple
from composer.utils.misc import is_model_ddp

__all__ = [
    "ReplacementFunction",
    "count_module_instances",
    "replace_module_classes",
    "update_params_in_optimizer",
]

log = logging.getLogger(__name__)

ReplacementFunction = Callable[[torch.nn.Module, int], "torch.nn.Module | None"]
"""Takes a module and its number among those of its class; returns what replaces it, or None."""


def replace_module_classes(
    module: torch.nn.Module,
    policies: Mapping[Any, ReplacementFunction],
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    recurse_on_replacements: bool = False,
    indices: dict[Any, int] | None = None,
) -> dict[torch.nn.Module, torch.nn.Module]:
    """Replaces, in place, the descendants of a module that a policy is for.

    A module that several parents share is replaced in all of them by the same new one, which is
    moved to the device of the old one.

    Args:
        module: Where to look; it is not replaced itself.
        policies: For each class, the function that makes the replacement. The first policy in order
            whose class a module is an instance of is asked; None leaves it to the next one.
        optimizers: The optimizer, whose parameters are exchanged too.
        recurse_on_replacements: Whether to look inside of replacements; a policy whose replacement
            holds a module of its own class would then never end.
        indices: Numbers to go on counting from, by class.

    Returns:
        What was replaced by what.

    Raises:
        TypeError: If the model is wrapped in DDP, whose buckets would go on with the old
            parameters, or what is to be replaced is sharded.
    """
    if is_model_ddp(module):
        raise TypeError(
            "A model cannot be changed after it was wrapped in DistributedDataParallel; change it "
            "first, or apply the algorithm at Event.INIT"
        )
    replaced: dict[torch.nn.Module, torch.nn.Module] = {}
    counts = {cls: 0 for cls in policies} if indices is None else indices
    to_visit: list[torch.nn.Module] = [module]
    visited: set[torch.nn.Module] = set()
    kept: set[torch.nn.Module] = set()
    while to_visit:
        parent = to_visit.pop()
        if parent in visited:
            continue
        visited.add(parent)
        for name, child in list(parent.named_children()):
            if child not in replaced and child not in kept:
                new = _replacement_of(child, policies, counts)
                if new is None:
                    kept.add(child)
                else:
                    _exchange(child, new, optimizers)
                    replaced[child] = new
            if child in replaced:
                setattr(parent, name, replaced[child])
                if recurse_on_replacements:
                    to_visit.append(replaced[child])
            else:
                to_visit.append(child)
        # named_children gives a module that has two names here only once.
        for name, child in list(parent._modules.items()):
            if child in replaced:
                setattr(parent, name, replaced[child])
    if not replaced:
        log.info("No module was replaced: the model has none of %s", list(policies))
    return replaced


def _replacement_of(
    child: torch.nn.Module, policies: Mapping[Any, ReplacementFunction], counts: dict[Any, int]
) -> torch.nn.Module | None:
    for cls, replace in policies.items():
        if not isinstance(child, cls):
            continue
        new = replace(child, counts[cls])
        counts[cls] += 1
        if new is not None:
            return new
    return None


def _exchange(
    old: torch.nn.Module,
    new: torch.nn.Module,
    optimizers: Optimizer | Sequence[Optimizer] | None,
) -> None:
    """Moves the new module to where the old one is and gives its parameters to the optimizer."""
    if any(as_sharded(parameter) is not None for parameter in old.parameters()):
        raise TypeError(
            f"A {type(old).__name__} cannot be replaced after its parameters were spread over the "
            "ranks; change the model before it goes to the Trainer, or apply the algorithm at "
            "Event.INIT"
        )
    tensor = next(itertools.chain(old.parameters(), old.buffers()), None)
    if tensor is not None:
        new.to(tensor.device)
    if optimizers:
        update_params_in_optimizer(old.parameters(), new.parameters(), optimizers)


def count_module_instances(module: torch.nn.Module, module_class: Any) -> int:
    """Returns how many different descendants are instances of a class, the module excluded."""
    return sum(
        isinstance(descendant, module_class)
        for descendant in set(module.modules())
        if descendant is not module
    )


def _tensor_in(tensor: torch.Tensor, tensors: Iterable[torch.Tensor]) -> bool:
    """Tells whether this very tensor is among others; ``in`` would compare values."""
    return any(tensor is other for other in tensors)


def _find_param_in_optimizer(param: torch.nn.Parameter, optimizer: Optimizer) -> int:
    """Returns the index of the parameter's group; -1 if it has none."""
    for index, group in enumerate(optimizer.param_groups):
        if _tensor_in(param, group["params"]):
            return index
    return -1


def _ordered_difference(
    first: Sequence[torch.nn.Parameter], second: Sequence[torch.nn.Parameter]
) -> list[torch.nn.Parameter]:
    """Returns what only the first list has, in its order."""
    held = {id(tensor) for tensor in second}
    return [tensor for tensor in first if id(tensor) not in held]


def update_params_in_optimizer(
    old_params: Iterable[torch.nn.Parameter],
    new_params: Iterable[torch.nn.Parameter],
    optimizers: Optimizer | Sequence[Optimizer],
) -> None:
    """Takes parameters out of the optimizer and puts others into the same group.

    Parameters that are in both lists stay, with their state. Several groups are only possible if
    all the old parameters are in one of them.

    Args:
        old_params: What the model has no longer.
        new_params: What it has instead.
        optimizers: The optimizer; only one is possible.

    Raises:
        NotImplementedError: If there are several optimizers.
        RuntimeError: If the old parameters are not in the optimizer, or in different groups.
    """
    optimizers = ensure_tuple(optimizers)
    if len(optimizers) != 1:
        raise NotImplementedError(
            f"Parameters can be exchanged in one optimizer only, not in {len(optimizers)}"
        )
    optimizer: Optimizer = optimizers[0]
    old, new = list(old_params), list(new_params)
    removed, added = _ordered_difference(old, new), _ordered_difference(new, old)
    if not removed and not added:
        return
    groups = optimizer.param_groups
    group = groups[0] if len(groups) == 1 else groups[_common_group(removed, optimizer)]
    gone = {id(param) for param in removed}
    group["params"] = [param for param in group["params"] if id(param) not in gone]
    for param in removed:
        optimizer.state.pop(param, None)
    group["params"].extend(param for param in added if not _tensor_in(param, group["params"]))


def _common_group(params: Sequence[torch.nn.Parameter], optimizer: Optimizer) -> int:
    """Returns the index of the one group that all parameters are in."""
    found = {_find_param_in_optimizer(param, optimizer) for param in params}
    if -1 in found:
        raise RuntimeError(
            "A parameter to be taken out is in none of the optimizer's groups; build the optimizer "
            "after the model has been changed, or with one parameter group"
        )
    if len(found) != 1:
        raise RuntimeError(
            textwrap.dedent(
                f"""\
                The parameters to be exchanged are in {len(found)} groups of the optimizer, so it
                cannot be told which group the new ones belong to; build the optimizer after the
                model has been changed, or with one parameter group"""
            ).replace("\n", " ")
        )
    return found.pop()
