"""Shards a model's parameters, gradients and moments over ranks with torch's ``fully_shard``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from composer.core.precision import Precision
from composer.distributed.mesh import REPLICATE, SHARD, build_mesh, data_axes
from composer.distributed.wrapping import (
    check_param_tying,
    check_units,
    generate_default_policy,
    modules_to_shard,
)
from composer.utils import dist
from composer.utils.parallelism import FSDP2Config

__all__ = [
    "apply_fully_shard",
    "create_mixed_precision_policy",
    "prepare_fully_shard",
    "sync_module_states",
]

_DTYPES = {
    Precision.FP32: torch.float32,
    Precision.AMP_FP16: torch.float16,
    Precision.AMP_BF16: torch.bfloat16,
    Precision.AMP_FP8: torch.bfloat16,
}
_NAMES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    **{precision.value: dtype for precision, dtype in _DTYPES.items()},
    **{str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES.values()},
}
_PARTS = ("param_dtype", "reduce_dtype", "buffer_dtype", "keep_low_precision_grads")


def _dtype(value: Any, key: str) -> torch.dtype | None:
    if value is None or isinstance(value, torch.dtype):
        return value
    name = value.value if isinstance(value, Precision) else str(value).lower()
    if name not in _NAMES:
        raise ValueError(
            f"mixed_precision.{key}={value!r} is no number format; it is one of {sorted(_NAMES)}"
        )
    return _NAMES[name]


def create_mixed_precision_policy(
    precision: Precision | None, mixed_precision: str | Mapping[str, Any]
) -> Any:
    """Makes torch's ``MixedPrecisionPolicy`` of the setting.

    Args:
        precision: The run's precision; None is float32.
        mixed_precision: ``FULL`` (nothing is cast), ``DEFAULT`` (parameters in the run's precision,
            gradients are summed in float32), ``PURE`` (gradients too in the run's precision), or a
            mapping with ``param_dtype`` and ``reduce_dtype``.

    Raises:
        ValueError: If the setting is none of these.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy

    low = _DTYPES[Precision(precision)] if precision is not None else torch.float32
    if isinstance(mixed_precision, Mapping):
        unknown = sorted(mixed_precision.keys() - set(_PARTS))
        if unknown:
            raise ValueError(f"mixed_precision has no setting {unknown}; it has {_PARTS}")
        param = _dtype(mixed_precision.get("param_dtype"), "param_dtype")
        reduce = _dtype(mixed_precision.get("reduce_dtype"), "reduce_dtype")
        return MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce)
    kinds = {"FULL": (None, None), "DEFAULT": (low, torch.float32), "PURE": (low, low)}
    name = str(mixed_precision).upper()
    if name not in kinds:
        raise ValueError(
            f"mixed_precision={mixed_precision!r} is not one of {', '.join(kinds)} or a mapping"
        )
    param, reduce = kinds[name]
    return MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce)


def apply_fully_shard(
    model: torch.nn.Module,
    fsdp2_config: FSDP2Config,
    precision: Precision | None,
    auto_wrap_policy: Any,
) -> list[torch.nn.Module]:
    """Shards the units that a policy names, inner ones first; returns them.

    What is in no unit stays whole on every rank, and its gradients are averaged.

    Args:
        model: The model, changed in place; its parameters become new ones.
        fsdp2_config: The settings; a unit may have its own.
        precision: The run's precision.
        auto_wrap_policy: Says of a module whether it is a unit, or with which settings.

    Raises:
        ValueError: If units share parameters with what is beside them.
    """
    mesh = fsdp2_config.device_mesh
    if fsdp2_config.cpu_offload and mesh is not None and mesh.device_type == "cpu":
        warnings.warn(
            "cpu_offload has no effect on the CPU, where weights are anyway; it takes effect on a "
            "GPU.",
            stacklevel=2,
        )
    units = modules_to_shard(model, auto_wrap_policy)
    check_units(model, units)
    with check_param_tying(model):
        _recursive_apply_fully_shard(model, model, units, fsdp2_config, precision)
    _average_gradients_of_whole_parameters(model, mesh)
    _set_prefetching(list(units), fsdp2_config)
    return list(units)


def _recursive_apply_fully_shard(
    root_module: torch.nn.Module,
    module: torch.nn.Module,
    target_modules_to_kwargs: dict[torch.nn.Module, dict[str, Any]],
    config: FSDP2Config | None = None,
    precision: Precision | None = None,
) -> None:
    """Shards the units at and below ``module``, children first."""
    from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

    for child in module.children():
        _recursive_apply_fully_shard(
            root_module, child, target_modules_to_kwargs, config, precision
        )
    if module not in target_modules_to_kwargs or isinstance(module, FSDPModule):
        return
    config = config or FSDP2Config()
    own = target_modules_to_kwargs[module]
    mixed_precision = own.get("mixed_precision", config.mixed_precision)
    offload = own.get("cpu_offload", config.cpu_offload)
    fully_shard(
        module,
        mesh=own.get("device_mesh", config.device_mesh),
        reshard_after_forward=own.get("reshard_after_forward", config.reshard_after_forward),
        mp_policy=create_mixed_precision_policy(precision, mixed_precision),
        offload_policy=(
            CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if offload else OffloadPolicy()
        ),
    )


def _average_gradients_of_whole_parameters(model: torch.nn.Module, mesh: Any) -> None:
    """Has every rank end with the same gradient of a parameter that is in no unit."""
    group = None if mesh is None or mesh.ndim > 1 else mesh.get_group()
    size = dist.get_world_size() if mesh is None else mesh.size()

    def average(parameter: torch.nn.Parameter) -> None:
        # What earlier micro-batches gave is equal on all ranks already; its mean is itself.
        assert parameter.grad is not None
        gradient = parameter.grad
        gradient.div_(size)
        if group is not None or mesh is None:
            torch.distributed.all_reduce(gradient, group=group)
            return
        for axis in range(mesh.ndim):
            torch.distributed.all_reduce(gradient, group=mesh.get_group(axis))

    for parameter in model.parameters():
        if parameter.requires_grad and not hasattr(parameter, "device_mesh"):
            parameter.register_post_accumulate_grad_hook(average)


def _set_prefetching(units: list[Any], config: FSDP2Config) -> None:
    """Has each unit ask for the next ones' parameters while it computes."""
    count = config.num_units_to_prefetch
    if count is None:
        return
    for index, unit in enumerate(units):
        unit.set_modules_to_forward_prefetch(units[index + 1 : index + 1 + count])
        unit.set_modules_to_backward_prefetch(units[max(0, index - count) : index][::-1])


def prepare_fully_shard(
    model: torch.nn.Module,
    fsdp2_config: FSDP2Config,
    precision: Precision | None = None,
    auto_wrap_policy: Any = None,
) -> None:
    """Shards a model in place; the mesh is made from the settings' degrees if they have none.

    Args:
        model: The model.
        fsdp2_config: The settings.
        precision: The run's precision.
        auto_wrap_policy: Says of a module whether it is a unit of sharding; by default the model
            does, by ``fsdp_wrap_fn(module)``.
    """
    if fsdp2_config.device_mesh is None:
        degrees = {
            REPLICATE: fsdp2_config.data_parallel_replicate_degree,
            SHARD: fsdp2_config.data_parallel_shard_degree,
        }
        device_type = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
        fsdp2_config.device_mesh = data_axes(build_mesh(device_type, degrees))
    policy = generate_default_policy(model) if auto_wrap_policy is None else auto_wrap_policy
    apply_fully_shard(model, fsdp2_config, precision, policy)


def sync_module_states(
    model: torch.nn.Module, full_state_dict: dict[str, Any], cpu_offload: bool = False
) -> None:
    """Gives a sharded model the weights that rank 0 has.

    Args:
        model: The sharded model; on ranks other than 0 it may be on ``meta``.
        full_state_dict: The whole weights by name on rank 0, anything elsewhere.
        cpu_offload: Whether the weights stay on the CPU.
    """
    from torch.distributed.checkpoint import state_dict as dcp

    options = dcp.StateDictOptions(
        full_state_dict=True, broadcast_from_rank0=True, strict=False, cpu_offload=cpu_offload
    )
    dcp.set_model_state_dict(model, full_state_dict, options=options)
