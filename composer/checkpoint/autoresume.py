"""Where a restarted run goes on: its newest complete checkpoint, on a disk or in a store.

A checkpoint is a file, or a folder of shards; a run that was resumed on another number of ranks may
have left both.

The ``latest`` link says which that is. It is moved after its checkpoint is whole, so a run that was
killed between the two has one newer file than the link knows; and a link can be lost. Both are
settled by the counters in the files' names, never by how names sort or by modification times.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from composer.checkpoint.atomic import is_leftover
from composer.checkpoint.download import patiently
from composer.checkpoint.monolithic import is_whole
from composer.checkpoint.naming import format_name_of_rank_zero, step_of_name
from composer.core.logger_destination import LoggerDestination
from composer.utils import dist
from composer.utils.file_helpers import extract_path_from_symlink
from composer.utils.file_names import files_of_template
from composer.utils.lazy import handed_on
from composer.utils.object_store.object_store import ObjectStore

__all__ = [
    "find_autoresume_checkpoint",
    "find_remote_checkpoint",
    "is_later",
    "newest_complete_checkpoint",
]

Source = ObjectStore | LoggerDestination

# Importing torch's checkpoint API is left to those who have folders of shards.
_of_shards = handed_on({"is_whole_folder": "composer.checkpoint.shard_index"})


def newest_complete_checkpoint(
    folder: str | os.PathLike[str],
    latest_name: str | None,
    filename: str | Sequence[str],
    latest_is_newest: bool = False,
) -> str | None:
    """Returns the path of the newest complete checkpoint in a folder, or None.

    Args:
        folder: The folder, without placeholders.
        latest_name: The link's name in it, without placeholders; None if the run has no link.
        filename: The template of the checkpoints' names, or several; of their placeholders only
            counters may be left.
        latest_is_newest: Take the link's word even if a later file lies there. So it is where runs
            overwrite: the later file is of an earlier, longer run.
    """
    root = Path(folder)
    templates = [name.lstrip("/") for name in _as_list(filename)]
    pointed = None if latest_name is None else _target_of(root / latest_name.lstrip("/"))
    if pointed is not None and latest_is_newest:
        return str(pointed)
    found = _whole_ones(root, templates)
    if pointed is None:
        return str(root / found[-1][1]) if found else None
    pointed_step = _step_within(root, pointed, templates)
    if pointed_step is None or not found or found[-1][0] <= pointed_step:
        return str(pointed)
    return str(root / found[-1][1])


def _as_list(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _is_complete(path: Path) -> bool:
    if path.is_dir():
        return _of_shards("is_whole_folder")(path)
    return path.is_file() and is_whole(path)


def _target_of(link: Path) -> Path | None:
    """Returns the complete checkpoint at the end of a link, or None; a file is its own end."""
    target = Path(os.path.realpath(link))
    return target if _is_complete(target) else None


def _step(name: str, templates: Sequence[str]) -> tuple[float, ...] | None:
    steps = (step_of_name(name, template) for template in templates)
    return next((step for step in steps if step is not None), None)


def _step_within(root: Path, path: Path, templates: Sequence[str]) -> tuple[float, ...] | None:
    real_root = Path(os.path.realpath(root))
    if not path.is_relative_to(real_root):
        return None
    return _step(path.relative_to(real_root).as_posix(), templates)


def _whole_ones(root: Path, templates: Sequence[str]) -> list[tuple[tuple[float, ...], str]]:
    """Returns (step, name) of the run's complete checkpoints, in the order of training.

    They are tried from the newest down, so that only one of a long run is usually looked into.
    """
    names = {name for template in templates for name, _ in files_of_template(root, template)}
    steps = []
    for name in names:
        step = _step(name, templates)
        if step is not None and not is_leftover(name) and not (root / name).is_symlink():
            steps.append((step, name))
    steps.sort()
    while steps and not _is_complete(root / steps[-1][1]):
        steps.pop()
    return steps


def find_autoresume_checkpoint(
    save_folder: str | os.PathLike[str],
    latest_filename: str | None,
    run_name: str,
    filename: str | Sequence[str] = "ep{epoch}-ba{batch}-rank{rank}.pt",
    overwrite: bool = False,
) -> str | None:
    """Returns the newest complete checkpoint of a run, the same on all ranks, or None.

    All ranks call it. Rank 0 looks and decides. Unfinished files of a killed save are never taken.

    Args:
        save_folder: The saver's folder, with placeholders. A local one.
        latest_filename: The saver's name for the ``latest`` link, with placeholders, or None.
        run_name: The run's name.
        filename: The saver's template of checkpoint names, or several.
        overwrite: The saver's ``overwrite``; see ``newest_complete_checkpoint``'s
            ``latest_is_newest``.

    Raises:
        RuntimeError: If some rank cannot see the file that rank 0 found.
    """
    path = dist.from_rank_zero(
        lambda: newest_complete_checkpoint(
            format_name_of_rank_zero(save_folder, run_name),
            None
            if latest_filename is None
            else format_name_of_rank_zero(latest_filename, run_name),
            [format_name_of_rank_zero(name, run_name) for name in _as_list(filename)],
            latest_is_newest=overwrite,
        ),
    )
    if path is None:
        return None
    blind = [
        rank for rank, sees in enumerate(dist.all_gather_object(os.path.exists(path))) if not sees
    ]
    if blind:
        raise RuntimeError(
            f"Autoresume found {path} on rank 0, but ranks {blind} cannot see it. Put save_folder "
            "on a file system that all nodes share, or copy the file to the same path on every "
            "node.",
        )
    return path


def find_remote_checkpoint(
    latest_remote_file_name: str, run_name: str, sources: Sequence[Source]
) -> tuple[str, Source] | None:
    """Returns the name of a run's newest checkpoint in a store, and the store, or None.

    All ranks call it. Rank 0 looks for the pointer that the saver moved last, once all that it
    points at was there.

    Args:
        latest_remote_file_name: The saver's name for it, with placeholders, without ``.symlink``.
        run_name: The run's name.
        sources: Where to look, in this order; the same on all ranks.
    """
    pointer = format_name_of_rank_zero(latest_remote_file_name, run_name).lstrip("/") + ".symlink"

    def look() -> tuple[str, int] | None:
        for number, source in enumerate(sources):
            if isinstance(source, LoggerDestination) and not _keeps_files(source):
                continue
            try:
                return patiently(extract_path_from_symlink)(pointer, source), number
            except FileNotFoundError:
                continue
        return None

    found = dist.from_rank_zero(look)
    return None if found is None else (found[0], sources[found[1]])


def is_later(name: str, than: str, templates: Sequence[str], run_name: str) -> bool:
    """Tells whether a checkpoint is of a later time than another, by their names.

    Args:
        name: The one's path or name.
        than: The other's.
        templates: The saver's templates of checkpoint names; folders do not matter.
        run_name: The run's name.
    """
    bases = [os.path.basename(format_name_of_rank_zero(t, run_name)) for t in templates]
    one, other = (_step(os.path.basename(path.rstrip("/")), bases) for path in (name, than))
    return one is not None and other is not None and one > other


def _keeps_files(destination: LoggerDestination) -> bool:
    """Tells whether a destination was given the checkpoints of this run, and gives them back."""
    return destination.can_upload_files() and destination.can_download_file()
