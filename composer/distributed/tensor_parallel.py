"""Splits layers over ranks with torch's tensor parallelism."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from composer.distributed.mesh import TENSOR, build_mesh
from composer.distributed.optimizer_parameters import sync_optimizer_and_model_params
from composer.utils.gradients import as_sharded
from composer.utils.iter_helpers import ensure_tuple
from composer.utils.parallelism import TPConfig

__all__ = ["prepare_tp_module"]


def prepare_tp_module(
    model: torch.nn.Module,
    optimizers: Optimizer | Sequence[Optimizer] | None,
    tp_config: TPConfig,
) -> None:
    """Splits the layers that a plan names, in place, and has the optimizer follow.

    Args:
        model: The model, or the ComposerModel that holds it.
        optimizers: The one optimizer, if there is one yet.
        tp_config: The plan (module name -> torch's ``ParallelStyle``) and the mesh or degree.

    Raises:
        NotImplementedError: If there are several optimizers.
        RuntimeError: If the optimizer has several parameter groups.
        ValueError: If the plan is empty or matches nothing, or the optimizer leaves parameters out.
    """
    from torch.distributed.tensor.parallel import parallelize_module

    given = ensure_tuple(optimizers)
    if len(given) > 1:
        raise NotImplementedError(
            f"Tensor parallelism takes one optimizer; {len(given)} were given."
        )
    optimizer = given[0] if given else None
    if optimizer is not None:
        _check_groups(model, optimizer)
    plan: dict[str, Any] | None = tp_config.layer_plan
    if not plan:
        raise ValueError(
            "tp_config has no layer_plan: name the modules to split, e.g. "
            "{'model.transformer.blocks.*.ffn.up_proj': ColwiseParallel()}"
        )
    mesh = tp_config.device_mesh
    if mesh is None:
        kind = "cuda" if next(model.parameters()).is_cuda else "cpu"
        mesh = build_mesh(
            kind, {"data_parallel_shard": -1, TENSOR: tp_config.tensor_parallel_degree}
        )
        mesh = tp_config.device_mesh = mesh[TENSOR]
    with sync_optimizer_and_model_params(optimizer, model):
        parallelize_module(model, mesh, plan)
    _sum_partial_gradients(model)
    _average_over_copies(model, plan, mesh.size())
    if not any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        raise ValueError(
            f"tp_config.layer_plan matched no module of the model: it names {sorted(plan)[:5]}"
        )


def _sum_partial_gradients(model: torch.nn.Module) -> None:
    """Has gradients be laid out as their parameters are.

    That of a norm whose inputs are split comes as one summand a rank. ``fully_shard`` does the same
    by itself, for the parameters that it makes of these.
    """
    for parameter in model.parameters():
        sharded = as_sharded(parameter)
        if sharded is not None and sharded.requires_grad:
            placements = sharded.placements
            sharded.register_hook(
                lambda gradient, to=placements: gradient.redistribute(placements=to)
            )


def _average_over_copies(model: torch.nn.Module, plan: dict[str, Any], size: int) -> None:
    """Has modules that take their inputs as shares of a batch give the gradients of one batch.

    All ranks of a group work on one batch, so what such a module gathers are copies of it: its
    parameters would get the gradient once for each.
    """
    for name, style in plan.items():
        if _takes_shares(style, "input_layouts"):
            for module in _matches(model, name):
                module.register_forward_pre_hook(_scale_inputs(float(size)), prepend=True)
        if _takes_shares(style, "output_layouts"):
            for module in _matches(model, name):
                module.register_forward_hook(_scale_outputs(1.0 / size))


def _takes_shares(style: Any, layouts: str) -> bool:
    """Says whether a style's inputs or outputs are parts of the batch's samples."""
    given = getattr(style, layouts, None) or ()
    return any(getattr(placement, "dim", None) == 0 for placement in given if placement is not None)


def _matches(model: torch.nn.Module, pattern: str) -> Iterator[torch.nn.Module]:
    for name, module in model.named_modules():
        parts, wanted = name.split("."), pattern.split(".")
        if len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted)):
            yield module


class _ScaleGradient(torch.autograd.Function):
    """Hands a tensor on, and its gradient times a factor."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, factor: float) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's form
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's form
        return gradient * ctx.factor, None


def _scale_inputs(factor: float) -> Callable[..., Any]:
    def hook(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(_scaled(each, factor) for each in args)

    return hook


def _scale_outputs(factor: float) -> Callable[..., Any]:
    return lambda module, args, output: _scaled(output, factor)


def _scaled(value: Any, factor: float) -> Any:
    is_tensor = isinstance(value, torch.Tensor) and value.is_floating_point()
    return _ScaleGradient.apply(value, factor) if is_tensor else value


def _check_groups(model: torch.nn.Module, optimizer: Optimizer) -> None:
    if len(optimizer.param_groups) > 1:
        raise RuntimeError(
            "Multiple optimizer groups are not supported with tensor parallelism. Received: "
            f"{len(optimizer.param_groups)} groups."
        )
    held = {id(parameter) for parameter in optimizer.param_groups[0]["params"]}
    missing = [name for name, p in model.named_parameters() if id(p) not in held]
    if missing:
        raise ValueError(
            "Passing in a subset of model parameters to the optimizer is not supported with tensor "
            f"parallelism. It leaves out {', '.join(missing[:3])} ({len(missing)} in all)."
        )
