"""A public path of Composer over the strategies: replicas, splitting, sharding."""

from composer.distributed.ddp import DDPSyncStrategy, ddp_sync_context, prepare_ddp_module
from composer.distributed.prepare_fsdp import prepare_fsdp_module
from composer.distributed.tensor_parallel import prepare_tp_module

__all__ = [
    "DDPSyncStrategy",
    "ddp_sync_context",
    "prepare_ddp_module",
    "prepare_fsdp_module",
    "prepare_tp_module",
]
