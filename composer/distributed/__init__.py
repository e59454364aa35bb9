"""How a model is spread over devices: replicated, sharded, split, compiled."""

from composer.distributed.compiling import blocks_of, compile_model
from composer.distributed.ddp import DDPSyncStrategy, ddp_sync_context, prepare_ddp_module
from composer.distributed.full_parameters import get_summon_params_fn
from composer.distributed.parallelize import parallelize_composer_model
from composer.distributed.prepare_fsdp import prepare_fsdp_module
from composer.distributed.tensor_parallel import prepare_tp_module

__all__ = [
    "DDPSyncStrategy",
    "blocks_of",
    "compile_model",
    "ddp_sync_context",
    "get_summon_params_fn",
    "parallelize_composer_model",
    "prepare_ddp_module",
    "prepare_fsdp_module",
    "prepare_tp_module",
]
