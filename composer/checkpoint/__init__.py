"""Checkpoints: what one holds, how it is written and read, where a run goes on.

The Trainer saves a run to one file (``whole_run``). ``save``, ``load``, ``upload`` and ``download``
are for programs that handle the parts of a run by themselves: weights, optimizer, the rest.
"""

from composer.utils.lazy import handed_on

__all__ = [
    "CheckpointContentError",
    "download_monolithic_checkpoint",
    "get_metadata_state_dict",
    "get_model_state_dict",
    "get_optim_state_dict",
    "get_resumption_state_dict",
    "upload_file",
]

_STATE_DICT = "composer.checkpoint.state_dict"

__getattr__ = handed_on(
    {
        "CheckpointContentError": "composer.checkpoint.allow_list",
        "download_monolithic_checkpoint": "composer.checkpoint.download",
        "get_metadata_state_dict": _STATE_DICT,
        "get_model_state_dict": _STATE_DICT,
        "get_optim_state_dict": _STATE_DICT,
        "get_resumption_state_dict": _STATE_DICT,
        "upload_file": "composer.checkpoint.upload",
    }
)
