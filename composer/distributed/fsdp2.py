"""A public path of Composer over `composer.distributed.fully_shard`."""

from composer.distributed.fully_shard import (
    _recursive_apply_fully_shard,
    apply_fully_shard,
    create_mixed_precision_policy,
    prepare_fully_shard,
    sync_module_states,
)

__all__ = [
    "_recursive_apply_fully_shard",
    "apply_fully_shard",
    "create_mixed_precision_policy",
    "prepare_fully_shard",
    "sync_module_states",
]
