"""Saving a run to one file."""

import logging

from composer.checkpoint.monolithic import write_checkpoint_file
from composer.checkpoint.naming import DEFAULT_FILENAME, get_save_filename
from composer.checkpoint.state_dict import IgnoreKeys, apply_ignore_keys, full_state, weights_state
from composer.core.state import State
from composer.utils import dist

__all__ = ["save_checkpoint"]

log = logging.getLogger(__name__)


def save_checkpoint(
    state: State,
    filename: str = DEFAULT_FILENAME,
    *,
    weights_only: bool = False,
    ignore_keys: IgnoreKeys | None = None,
) -> str | None:
    """Saves the run; returns the file's path on the rank that wrote it and None on the others.

    All ranks call it. When it returns, the file is whole and on the disk: the process may be killed
    at any moment, and the name holds the old checkpoint or the new one. If rank 0 cannot write, all
    ranks raise.

    Args:
        state: The run's State.
        filename: The path, with placeholders of ``FORMAT_NAME_WITH_DIST_AND_TIME_TABLE``. Its
            ending says the form: ``.pt``, ``.pt.<compressor>`` or a tarball.
        weights_only: Save the weights and the model's metadata only.
        ignore_keys: What to leave out: globs of ``/``-joined paths, or a function that changes the
            content in place.

    Raises:
        ValueError: If the State asks for sharded checkpoints, which are folders.
    """
    if state.fsdp_sharded_state_dict_enabled:
        raise ValueError(
            "state_dict_type='sharded' asks for a folder of shards, and this writes one file: set "
            "state_dict_type: full in parallelism_config['fsdp'] or ['fsdp2'].",
        )
    content = weights_state(state) if weights_only else full_state(state)
    apply_ignore_keys(content, ignore_keys)
    path = get_save_filename(state, filename)
    dist.from_rank_zero(lambda: write_checkpoint_file(content, path))
    log.debug("Saved checkpoint %s", path)
    return path if dist.get_global_rank() == 0 else None
