"""A user's word on whether a checkpoint may be read; the old address of loading and saving.

Organisations check checkpoints with a function of their own before anything in them is read, which
they name in the environment variable ``CHECKPOINT_VALIDATION_FUNCTION``.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any

from composer.utils import dist
from composer.utils.lazy import handed_on

__all__ = ["ensure_valid_checkpoint"]

_VARIABLE = "CHECKPOINT_VALIDATION_FUNCTION"

# How torch names the parts of a sharded checkpoint.
_TORCH_DISTRIBUTED_CHECKPOINTS_FILENAME = f"__{dist.get_global_rank()}_0.distcp"
_TORCH_DISTRIBUTED_CHECKPOINTS_METADATA_FILENAME = ".metadata"


def _get_checkpoint_validation_function() -> Callable[[str, Any], bool] | None:
    """Returns the function that the environment names as ``module.function``, or None."""
    name = os.environ.get(_VARIABLE)
    if not name:
        return None
    module_name, _, function_name = name.rpartition(".")
    return getattr(importlib.import_module(module_name), function_name)


def ensure_valid_checkpoint(path: str, specs: Any = None) -> str:
    """Asks the user's function, if there is one, and returns the path.

    Args:
        path: The file that is about to be read.
        specs: What of it is about to be read; None for all.

    Raises:
        ValueError: If the function says no.
    """
    validate = _get_checkpoint_validation_function()
    if validate is not None and not validate(path, specs):
        raise ValueError(
            f"Checkpoint at {path} is not valid: the function named by {_VARIABLE} says so. Load "
            "another checkpoint, or unset the variable."
        )
    return path


_ensure_valid_checkpoint = ensure_valid_checkpoint

# Their homes are on a higher floor.
_FILE = "composer.checkpoint.monolithic"
_RUN = "composer.checkpoint.whole_run"
_SHARDS = "composer.checkpoint.sharded_run"
__getattr__ = handed_on(
    {
        "DistCPObjectStoreReader": _SHARDS,
        "FileSystemReaderWithValidation": "composer.checkpoint.sharded",
        "PartialFilePath": "composer.checkpoint.naming",
        "_COMPOSER_STATES_FILENAME": f"{_FILE}:STATES_FILENAME",
        "_is_rng_key": "composer.checkpoint.content:is_rng_key",
        "_torch_load_with_validation": f"{_FILE}:torch_load_with_validation",
        "_write_checkpoint_file": f"{_FILE}:write_checkpoint_file",
        "dist_cp_load": _SHARDS,
        "download_checkpoint": _RUN,
        "download_object_or_file": _RUN,
        "get_save_filename": "composer.checkpoint.naming",
        "glob_filter": "composer.checkpoint.content",
        "load_checkpoint": _RUN,
        "load_sharded_checkpoint": _SHARDS,
        "safe_torch_load": _FILE,
        "save_checkpoint": _RUN,
    }
)
