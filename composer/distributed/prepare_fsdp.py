"""Sharding by the call that programs know from the first generation of FSDP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from composer.core.precision import Precision
from composer.distributed.mesh import REPLICATE, SHARD, build_mesh, data_axes
from composer.distributed.parallelize import parallelize_composer_model
from composer.utils.iter_helpers import ensure_tuple
from composer.utils.parallelism import FSDP2Config, FSDPConfig

__all__ = ["prepare_fsdp_module"]


def prepare_fsdp_module(
    model: torch.nn.Module,
    optimizers: Optimizer | Sequence[Optimizer] | None,
    fsdp_config: FSDPConfig | FSDP2Config,
    precision: Precision | None = None,
    device: Any = None,
    auto_microbatching: bool = False,
    te_rng_seed: int = 1234,
) -> tuple[list[Any], dict[str, torch.nn.Module]]:
    """Shards a ComposerModel in place with torch's ``fully_shard``, by settings of older recipes.

    Args:
        model: The model.
        optimizers: Its one optimizer, which gets the new parameters.
        fsdp_config: The settings.
        precision: The run's precision.
        device: Where it trains; by default where its process group's tensors are.
        auto_microbatching: Not supported for a sharded model.
        te_rng_seed: Has no meaning any more.

    Returns:
        Nothing to remove later, and the sharded modules by name.

    Raises:
        NotImplementedError: If there are several optimizers, or the size of micro-batches is to be
            found.
        ValueError: If the settings ask for no sharding.
    """
    del te_rng_seed
    given = ensure_tuple(optimizers)
    if len(given) > 1:
        raise NotImplementedError(f"Sharding takes one optimizer; {len(given)} were given.")
    if auto_microbatching:
        raise NotImplementedError(
            "A sharded model needs device_train_microbatch_size as a number: it is not found by "
            "trying."
        )
    config = fsdp_config.to_fsdp2() if isinstance(fsdp_config, FSDPConfig) else fsdp_config
    if config is None:
        raise ValueError("sharding_strategy NO_SHARD asks for a model that is not sharded")
    if config.device_mesh is None:
        kind = getattr(getattr(device, "_device", None), "type", None)
        if kind is None:
            kind = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
        degrees = {
            REPLICATE: config.data_parallel_replicate_degree,
            SHARD: config.data_parallel_shard_degree,
        }
        config.device_mesh = data_axes(build_mesh(kind, degrees))
    parallelize_composer_model(model, given[0] if given else None, config, precision)
    from torch.distributed.fsdp import FSDPModule

    named: dict[str, torch.nn.Module] = dict(model.named_modules())
    return [], {name: module for name, module in named.items() if isinstance(module, FSDPModule)}
