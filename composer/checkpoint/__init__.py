"""The one checkpoint system: what one holds, how it is written and read, where a run goes on."""

from composer.checkpoint.allow_list import CheckpointContentError
from composer.checkpoint.autoresume import find_autoresume_checkpoint
from composer.checkpoint.load import load_checkpoint
from composer.checkpoint.save import save_checkpoint

__all__ = [
    "CheckpointContentError",
    "find_autoresume_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]
