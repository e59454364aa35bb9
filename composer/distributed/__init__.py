"""How a model is spread over devices; now data parallelism by replication (DDP)."""

from composer.distributed.ddp import DDPSyncStrategy, ddp_sync_context, prepare_ddp_module

__all__ = ["DDPSyncStrategy", "ddp_sync_context", "prepare_ddp_module"]
