"""What a checkpoint is called: the placeholders of its name, filled in at each save."""

import os
from pathlib import Path

from composer.core.state import State
from composer.utils.file_names import (
    FORMAT_NAME_WITH_DIST_AND_TIME_TABLE,
    FORMAT_NAME_WITH_DIST_TABLE,
    counters_in_name,
    ensure_folder_has_no_conflicting_files,
    format_name_with_dist,
    format_name_with_dist_and_time,
    is_tar,
    step_of_name,
)
from composer.utils.misc import partial_format

__all__ = [
    "DEFAULT_FILENAME",
    "FORMAT_NAME_WITH_DIST_AND_TIME_TABLE",
    "FORMAT_NAME_WITH_DIST_TABLE",
    "PartialFilePath",
    "as_seen_from",
    "counters_in_name",
    "ensure_folder_has_no_conflicting_files",
    "format_name_of_rank_zero",
    "format_name_with_dist",
    "format_name_with_dist_and_time",
    "get_save_filename",
    "is_tar",
    "sharded_template",
    "step_of_name",
]

DEFAULT_FILENAME = "ep{epoch}-ba{batch}-rank{rank}"
DEFAULT_SHARDED_NAME = "ep{epoch}-ba{batch}"


class PartialFilePath:
    """A file name with placeholders and the folder that it will stand in.

    Args:
        filename: A name with placeholders; a leading ``/`` is dropped.
        folder: A folder, which may have placeholders too.
    """

    def __init__(
        self, filename: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None
    ) -> None:
        self.folder = None if folder is None else str(folder)
        self.filename = str(filename)

    def format(self, state: State, keep_placeholders: bool = False) -> str:
        """Returns the path with the run's name, ranks and counters filled in.

        Args:
            state: The run's State.
            keep_placeholders: Return the path as it was written, to be filled in later.
        """
        path = (
            os.path.join(self.folder, self.filename.lstrip("/")) if self.folder else self.filename
        )
        return path if keep_placeholders else get_save_filename(state, path)


def get_save_filename(state: State, filename: str = DEFAULT_FILENAME) -> str:
    """Returns ``filename`` with the run's name, this rank and the present counters filled in."""
    return format_name_with_dist_and_time(filename, state.run_name, state.timestamp)


def sharded_template(state: State, filename: str) -> str:
    """Returns the template of the folder that takes the place of ``filename`` if it is sharded."""
    prefix = getattr(state.fsdp_config, "sharded_ckpt_prefix_dir", None) or DEFAULT_SHARDED_NAME
    return os.path.join(os.path.dirname(filename), prefix)


def format_name_of_rank_zero(name: str | os.PathLike[str], run_name: str | None) -> str:
    """Fills in a name as rank 0 would: a one-file checkpoint has one writer, whoever reads it."""
    return partial_format(str(name), run_name=run_name, rank=0, local_rank=0, node_rank=0)


def as_seen_from(folder: str, path: str) -> str | None:
    """Returns the path by which a folder's own file is reached now, or None if it is not in it.

    Both may have been reached through links, which were others when the path was noted.
    """
    parent = Path(os.path.realpath(os.path.dirname(path)))
    root = os.path.realpath(folder)
    if not parent.is_relative_to(root):
        return None
    return os.path.join(folder, *parent.relative_to(root).parts, os.path.basename(path))
