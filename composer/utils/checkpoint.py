"""shim: loading and saving live in composer.checkpoint."""

from composer.checkpoint.load import load_checkpoint
from composer.checkpoint.monolithic import STATES_FILENAME as _COMPOSER_STATES_FILENAME
from composer.checkpoint.monolithic import safe_torch_load
from composer.checkpoint.monolithic import write_checkpoint_file as _write_checkpoint_file
from composer.checkpoint.naming import PartialFilePath, get_save_filename
from composer.checkpoint.save import save_checkpoint
from composer.checkpoint.state_dict import glob_filter

__all__ = [
    "_COMPOSER_STATES_FILENAME",
    "PartialFilePath",
    "_write_checkpoint_file",
    "get_save_filename",
    "glob_filter",
    "load_checkpoint",
    "safe_torch_load",
    "save_checkpoint",
]
