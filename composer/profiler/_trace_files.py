"""What the trace files of torch's profiler and of the JSON handler have in common."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time import Timestamp
from composer.utils import dist
from composer.utils.file_helpers import parse_uri
from composer.utils.file_names import (
    ensure_folder_has_no_conflicting_files,
    format_name_with_dist,
    format_name_with_dist_and_time,
)

SavedTraces = list[tuple[Timestamp, list[Path]]]


def profiler_of(state: State, part: Callback) -> Any:
    """Returns the run's profiler.

    Raises:
        RuntimeError: If it has none, so that ``part`` can do nothing.
    """
    if state.profiler is None:
        name = type(part).__name__
        raise RuntimeError(
            f"{name} works in a run with a profiler only: use composer.profiler.Profiler, and give "
            "it to Trainer(profiler=...)."
        )
    return state.profiler


def refuse_traces_of_other_runs(state: State, folder: str, names: Sequence[str]) -> None:
    """Raises FileExistsError, on every rank, if a new run would write over another's traces.

    A resumed run may: what it traces again are its own batches.

    Args:
        state: The run's state.
        folder: Where the traces are to be, with placeholders.
        names: What they are to be called there, with placeholders.
    """
    if state.timestamp.batch > 0:
        return
    problem = None
    root = format_name_with_dist(folder, state.run_name)
    for name in names:
        path = os.path.join(root, format_name_with_dist(name, state.run_name))
        if os.path.exists(path):
            problem = f"{path} is a trace of another run."
        elif os.path.isdir(root):
            try:
                ensure_folder_has_no_conflicting_files(root, name, state.timestamp)
            except FileExistsError as error:
                problem = str(error)
    # Every rank must raise, or the others would wait for those that did.
    for rank, found in enumerate(dist.all_gather_object(problem)):
        if found is not None:
            raise FileExistsError(
                f"On rank {rank}: {found} Choose another folder or run_name for the profiler, or "
                "set overwrite=True."
            )


def trace_path(state: State, folder: str, name: str) -> Path:
    """Returns the path of a trace now, and makes its folder."""
    path = format_name_with_dist_and_time(
        os.path.join(folder, name), state.run_name, state.timestamp
    )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return Path(path)


def upload_trace(
    state: State, logger: Logger, remote_name: str | None, path: Path, *, overwrite: bool
) -> None:
    """Hands a trace to the destinations that keep files, if it has a name there."""
    if remote_name is None or not logger.has_file_upload_destination():
        return
    name = format_name_with_dist_and_time(remote_name, state.run_name, state.timestamp)
    logger.upload_file(parse_uri(name)[2].lstrip("/"), path, overwrite=overwrite)


def delete_old_traces(saved_traces: SavedTraces, num_to_keep: int) -> None:
    """Deletes the oldest traces beyond a number; -1 keeps all."""
    while 0 <= num_to_keep < len(saved_traces):
        _timestamp, paths = saved_traces.pop(0)
        for path in paths:
            path.unlink(missing_ok=True)
