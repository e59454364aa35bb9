"""shim: replication with DDP lives in composer.distributed.ddp."""

from composer.distributed.ddp import DDPSyncStrategy, ddp_sync_context, prepare_ddp_module

__all__ = ["DDPSyncStrategy", "ddp_sync_context", "prepare_ddp_module"]
