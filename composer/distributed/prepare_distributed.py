"""A public path of Composer over `composer.distributed.parallelize`."""

from composer.distributed.parallelize import (
    get_full_state_dict,
    log_execution_time,
    parallelize_composer_model,
    parallelize_model,
)

__all__ = [
    "get_full_state_dict",
    "log_execution_time",
    "parallelize_composer_model",
    "parallelize_model",
]
