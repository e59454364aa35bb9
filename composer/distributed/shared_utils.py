"""A public path of Composer over what its two generations of sharding shared."""

from composer.distributed.full_parameters import get_summon_params_fn
from composer.distributed.parallelize import update_sync_module_states_if_needed
from composer.distributed.wrapping import get_direct_children_from_composer_model

__all__ = [
    "get_direct_children_from_composer_model",
    "get_summon_params_fn",
    "update_sync_module_states_if_needed",
]
