"""Splits layers over ranks with torch's tensor parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from composer.distributed.mesh import TENSOR, build_mesh
from composer.distributed.optimizer_parameters import sync_optimizer_and_model_params
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
    if not any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        raise ValueError(
            f"tp_config.layer_plan matched no module of the model: it names {sorted(plan)[:5]}"
        )


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
