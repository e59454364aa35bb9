"""Helpers of the first generation of FSDP, which is gone: each says what takes its place."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["get_cpu_offload", "get_mixed_precision", "set_custom_fsdp_module_kwargs"]


def _refuse(name: str, instead: str) -> NoReturn:
    raise NotImplementedError(
        f"{name} belongs to torch's first FSDP. Models are sharded by fully_shard: {instead}"
    )


def get_mixed_precision(
    precision: Any, mixed_precision: Any = "DEFAULT", keep_low_precision_grads: bool = False
) -> NoReturn:
    """Is refused: `composer.distributed.fsdp2.create_mixed_precision_policy` is what there is."""
    _refuse(
        "get_mixed_precision",
        "use composer.distributed.fsdp2.create_mixed_precision_policy(precision, mixed_precision)",
    )


def get_cpu_offload(cpu_offload: bool = False) -> NoReturn:
    """Is refused: the setting is ``FSDP2Config.cpu_offload``."""
    _refuse("get_cpu_offload", "set cpu_offload in parallelism_config['fsdp2']")


def set_custom_fsdp_module_kwargs(module_kwargs: Any, process_group_cache: Any) -> NoReturn:
    """Is refused: ``fsdp_wrap_fn`` returns a unit's own settings."""
    _refuse(
        "set_custom_fsdp_module_kwargs",
        "have fsdp_wrap_fn(module) return the unit's settings, a dictionary of FSDP2Config's",
    )
