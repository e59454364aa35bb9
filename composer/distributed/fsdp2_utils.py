"""A public path of Composer over the helpers of ``fully_shard``."""

from composer.distributed.full_parameters import (
    _get_params_to_summon_fsdp2,
    summon_full_params_fsdp2,
    validate_all_dtensors_are_fsdp_based,
)
from composer.distributed.optimizer_parameters import (
    sync_optimizer_and_model_params,
    update_optimizer_modules,
)
from composer.distributed.wrapping import (
    check_param_tying,
    generate_composer_model_policy,
    generate_default_policy,
    get_standalone_and_tied_modules,
    legalize_param_sharing_between_modules,
)

__all__ = [
    "_get_params_to_summon_fsdp2",
    "check_param_tying",
    "generate_composer_model_policy",
    "generate_default_policy",
    "get_standalone_and_tied_modules",
    "legalize_param_sharing_between_modules",
    "summon_full_params_fsdp2",
    "sync_optimizer_and_model_params",
    "update_optimizer_modules",
    "validate_all_dtensors_are_fsdp_based",
]
