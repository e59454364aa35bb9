"""Whose checkpoints lie where a run is about to save: asked before anything is trained."""

import contextlib
import logging
import os
import posixpath
from collections.abc import Iterator, Sequence

from composer.checkpoint.download import patiently
from composer.core.timestamp import Timestamp
from composer.utils.file_names import (
    counters_in_name,
    ensure_folder_has_no_conflicting_files,
    refuse_later_name,
)
from composer.utils.object_store.object_store import ObjectStore

__all__ = [
    "cure_of_conflicts",
    "refuse_folder_of_another_run",
    "refuse_no_link",
    "refuse_store_of_another_run",
]

log = logging.getLogger(__name__)


def refuse_folder_of_another_run(
    folder: str, templates: Sequence[str], timestamp: Timestamp
) -> None:
    """Raises FileExistsError if a folder holds a checkpoint that is later than ``timestamp``."""
    for template in templates if os.path.isdir(folder) else ():
        ensure_folder_has_no_conflicting_files(folder, template, timestamp)


def refuse_store_of_another_run(
    store: ObjectStore, templates: Sequence[str], timestamp: Timestamp
) -> None:
    """Raises FileExistsError if a store holds a checkpoint that is later than ``timestamp``.

    Args:
        store: The store. One that lists nothing, because it cannot or may not, is trusted.
        templates: Names of files and of folders of shards; only counters may be left in them.
        timestamp: The run's current time.
    """
    for template in templates:
        prefix = template.partition("{")[0]
        if not prefix:  # it would list the whole bucket
            continue
        try:
            names = patiently(store.list_objects)(prefix)
        except Exception as error:  # whatever a store raises; saving may work all the same
            log.warning("Not looked for checkpoints of other runs at %s: %s", prefix, error)
            return
        for name in sorted({*names, *map(posixpath.dirname, names)}):
            counters = counters_in_name(name, template)
            if counters is not None:
                refuse_later_name(store.get_uri(name), counters, timestamp)


def refuse_no_link(latest: str) -> None:
    """Raises FileExistsError if something stands where the link to the newest is to stand."""
    if os.path.lexists(latest) and not os.path.islink(latest):
        raise FileExistsError(
            f"{latest} is not a link. Move it away, or choose another save_latest_filename."
        )


@contextlib.contextmanager
def cure_of_conflicts() -> Iterator[None]:
    """Adds to an upload's FileExistsError what to do about it."""
    try:
        yield
    except FileExistsError as error:
        raise FileExistsError(
            f"Uploading a checkpoint failed: {error} Choose another run_name or save_folder, or "
            "set save_overwrite=True."
        ) from error
