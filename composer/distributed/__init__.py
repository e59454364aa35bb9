"""How a model is spread over devices and compiled; now data parallelism by replication (DDP)."""

from composer.distributed.compiling import blocks_of, compile_model
from composer.distributed.ddp import DDPSyncStrategy, ddp_sync_context, prepare_ddp_module

__all__ = [
    "DDPSyncStrategy",
    "blocks_of",
    "compile_model",
    "ddp_sync_context",
    "prepare_ddp_module",
]
