"""Activation checkpointing: activations are computed again in the backward pass, not kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from composer.distributed.wrapping import get_direct_children_from_composer_model

__all__ = ["apply_ac", "generate_composer_model_check_fn", "generate_default_check_fn"]

CheckFn = Callable[[torch.nn.Module], bool]
_SETTINGS = (
    "activation_checkpointing is true or 'full' (every chosen module), {'every': n} (every n-th of "
    "them), 'operators' (the results of matrix products and attention are kept, all else is "
    "computed again) or {'memory_budget': 0..1} (the compiler chooses; needs compile_config)"
)


def generate_default_check_fn(model: torch.nn.Module) -> CheckFn:
    """Returns a function that says whether a module is to be checkpointed, by the model's words.

    Asked are the module's ``_activation_checkpointing``, then the model's
    ``activation_checkpointing_fn(module)``; without either it is not.
    """
    asked: CheckFn | None = getattr(model, "activation_checkpointing_fn", None)

    def check(module: torch.nn.Module) -> bool:
        flag = getattr(module, "_activation_checkpointing", None)
        if flag is not None:
            return bool(flag)
        return bool(asked(module)) if asked is not None else False

    return check


def generate_composer_model_check_fn(composer_model: torch.nn.Module) -> CheckFn:
    """Returns the function of a ComposerModel: each child speaks for the modules below it."""
    own: CheckFn | None = getattr(composer_model, "activation_checkpointing_fn", None)
    checks: dict[torch.nn.Module, CheckFn] = {}
    for child in get_direct_children_from_composer_model(composer_model):
        speaker = child if hasattr(child, "activation_checkpointing_fn") or own is None else None
        check = generate_default_check_fn(speaker if speaker is not None else composer_model)
        checks.update((module, check) for module in child.modules())
    return lambda module: module in checks and checks[module](module)


def memory_budget(activation_checkpointing: bool | str | Mapping[str, Any]) -> float | None:
    """Returns the share of activations' memory that the compiler may use, if that is the setting.

    Raises:
        ValueError: If the setting is none that there is.
    """
    if isinstance(activation_checkpointing, Mapping):
        if activation_checkpointing.keys() == {"memory_budget"}:
            budget = activation_checkpointing["memory_budget"]
            if isinstance(budget, (int, float)) and 0 <= budget <= 1:
                return float(budget)
        elif activation_checkpointing.keys() == {"every"}:
            every = activation_checkpointing["every"]
            if isinstance(every, int) and not isinstance(every, bool) and every > 0:
                return None
    elif activation_checkpointing in (True, False, "full", "operators"):
        return None
    raise ValueError(f"activation_checkpointing={activation_checkpointing!r}: {_SETTINGS}")


def apply_ac(
    model: torch.nn.Module,
    activation_checkpointing: bool | str | Mapping[str, Any],
    activation_cpu_offload: bool,
    check_fn: CheckFn | None = None,
) -> None:
    """Wraps the chosen modules so that they recompute or offload what the backward pass needs.

    Args:
        model: The model, changed in place; the names in its state dict stay.
        activation_checkpointing: Whether, or how, activations are recomputed: ``True`` or
            ``"full"``, ``{"every": n}``, ``"operators"`` (selective; the results of matrix products
            and attention are kept) or ``{"memory_budget": share}`` (left to torch.compile, for all
            that this process compiles from then on).
        activation_cpu_offload: Whether kept activations wait in the CPU's memory.
        check_fn: Says which modules; by default the model does.

    Raises:
        ValueError: If the setting is unknown, or nothing is chosen.
    """
    budget = memory_budget(activation_checkpointing)
    if budget is not None:
        _set_memory_budget(budget)
        activation_checkpointing = False
    if not activation_checkpointing and not activation_cpu_offload:
        return
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers

    chosen = list(_chosen(model, check_fn or generate_default_check_fn(model)))
    if not chosen:
        raise ValueError(
            "activation checkpointing or offload is on, but the model chooses no module: give it "
            "activation_checkpointing_fn(module), or set _activation_checkpointing = True on the "
            "modules that shall recompute"
        )
    every = (
        activation_checkpointing["every"] if isinstance(activation_checkpointing, Mapping) else 1
    )
    extra: dict[str, Any] = {}
    if activation_checkpointing == "operators":
        extra["context_fn"] = _keeps_matrix_products
    for index, (parent, name, module) in enumerate(chosen):
        if activation_checkpointing and index % every == 0:
            module = wrappers.checkpoint_wrapper(
                module, checkpoint_impl=wrappers.CheckpointImpl.NO_REENTRANT, **extra
            )
        if activation_cpu_offload:
            module = wrappers.offload_wrapper(module)
        setattr(parent, name, module)


def _chosen(
    model: torch.nn.Module, check_fn: CheckFn
) -> Iterator[tuple[torch.nn.Module, str, torch.nn.Module]]:
    """Finds the outermost chosen modules: inside of one, recomputing again would save nothing."""
    for name, child in list(model.named_children()):
        if check_fn(child):
            yield model, name, child
        else:
            yield from _chosen(child, check_fn)


@functools.cache
def _operators_to_keep() -> frozenset[Any]:
    aten = torch.ops.aten
    return frozenset(
        {
            aten.mm.default,
            aten.addmm.default,
            aten.bmm.default,
            aten._scaled_dot_product_flash_attention.default,
            aten._scaled_dot_product_efficient_attention.default,
            aten._scaled_dot_product_cudnn_attention.default,
            aten._scaled_dot_product_flash_attention_for_cpu.default,
        }
    )


def _keeps_matrix_products() -> Any:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    keep, other = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
    kept = _operators_to_keep()
    return create_selective_checkpoint_contexts(
        lambda _context, operator, *_args, **_kwargs: keep if operator in kept else other
    )


def _set_memory_budget(budget: float) -> None:
    import torch._functorch.config as compiler

    compiler.activation_memory_budget = budget
