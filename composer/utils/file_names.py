"""File names with placeholders: filled in from the run and the clock, and read back into counters.

The same table serves both ways, so that what a saver wrote is found, ordered and checked by what
its name says, never by how the text sorts or by a modification time.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from composer.utils import dist
from composer.utils.misc import partial_format

__all__ = [
    "FORMAT_NAME_WITH_DIST_AND_TIME_TABLE",
    "FORMAT_NAME_WITH_DIST_TABLE",
    "counters_in_name",
    "ensure_folder_has_no_conflicting_files",
    "ensure_folder_is_empty",
    "files_of_template",
    "format_name_with_dist",
    "format_name_with_dist_and_time",
    "is_tar",
    "refuse_later_name",
    "step_of_name",
]

FORMAT_NAME_WITH_DIST_TABLE = """
{run_name}          the name of the run
{rank}              the global rank
{local_rank}        the rank within the node
{world_size}        the number of ranks
{local_world_size}  the number of ranks on the node
{node_rank}         the number of the node
"""

FORMAT_NAME_WITH_DIST_AND_TIME_TABLE = (
    FORMAT_NAME_WITH_DIST_TABLE
    + """\
{epoch}             finished epochs
{batch}             finished batches
{batch_in_epoch}    finished batches of this epoch
{sample}            samples trained on
{sample_in_epoch}   samples trained on in this epoch
{token}             tokens trained on
{token_in_epoch}    tokens trained on in this epoch
{total_wct}         seconds of training
{epoch_wct}         seconds of training in this epoch
{batch_wct}         seconds that the last batch took
"""
)

# Counters that only grow during a run come first: a name is ordered by them, then by those that
# start
# anew with each epoch.
_GROWING = ("epoch", "batch", "sample", "token")
_WITHIN_EPOCH = ("batch_in_epoch", "sample_in_epoch", "token_in_epoch")
_SECONDS = ("total_wct", "epoch_wct", "batch_wct")
_COUNTERS = _GROWING + _WITHIN_EPOCH
_PLACEHOLDER = re.compile(r"\{(\w*)[^{}]*\}")


class _TimestampLike(Protocol):
    """What a name needs to know of ``composer.core.Timestamp``."""

    @property
    def epoch(self) -> Any: ...
    @property
    def batch(self) -> Any: ...
    @property
    def sample(self) -> Any: ...
    @property
    def token(self) -> Any: ...
    @property
    def total_wct(self) -> Any: ...


def format_name_with_dist(
    format_str: str, run_name: str | None, **extra_format_kwargs: object
) -> str:
    """Fills in the run's name and this process's ranks; unknown placeholders stay as they are.

    Args:
        format_str: A name with placeholders of ``FORMAT_NAME_WITH_DIST_TABLE``.
        run_name: The run's name.
        extra_format_kwargs: More placeholders and their values.
    """
    return partial_format(
        format_str,
        run_name=run_name,
        **_dist_values(),
        **extra_format_kwargs,
    )


def _dist_values() -> dict[str, int]:
    return {
        "rank": dist.get_global_rank(),
        "local_rank": dist.get_local_rank(),
        "world_size": dist.get_world_size(),
        "local_world_size": dist.get_local_world_size(),
        "node_rank": dist.get_node_rank(),
    }


def format_name_with_dist_and_time(
    format_str: str,
    run_name: str | None,
    timestamp: _TimestampLike,
    **extra_format_kwargs: object,
) -> str:
    """Fills in the run's name, this process's ranks and the counters of ``timestamp``.

    Args:
        format_str: A name with placeholders of ``FORMAT_NAME_WITH_DIST_AND_TIME_TABLE``.
        run_name: The run's name.
        timestamp: A ``composer.Timestamp``.
        extra_format_kwargs: More placeholders and their values.
    """
    counters = {name: int(getattr(timestamp, name)) for name in _COUNTERS}
    seconds = {name: getattr(timestamp, name).total_seconds() for name in _SECONDS}
    return partial_format(
        format_str,
        run_name=run_name,
        **_dist_values(),
        **counters,
        **seconds,
        **extra_format_kwargs,
    )


def is_tar(name: str | os.PathLike[str]) -> bool:
    """Tells by its name whether a file is a tarball, compressed or not."""
    text = str(name)
    return "tar" in os.path.basename(text).split(".")[-2:] or text.endswith("tgz")


def _pattern(template: str) -> re.Pattern[str]:
    """Turns a template into an expression whose groups are the template's placeholders."""
    parts: list[str] = []
    seen: set[str] = set()
    end = 0
    for match in _PLACEHOLDER.finditer(template):
        parts.append(re.escape(template[end : match.start()]))
        end = match.end()
        name = match.group(1)
        if name in seen:
            parts.append(f"(?P={name})")
            continue
        if name in _COUNTERS:
            value = r"\d+"
        elif name in _SECONDS:
            value = r"\d+(?:\.\d+)?"
        elif name.endswith(("rank", "world_size")):
            value = r"\d+"
        else:
            value = r"[^/]+?"
        parts.append(f"(?P<{name}>{value})" if name.isidentifier() else f"(?:{value})")
        seen.add(name)
    parts.append(re.escape(template[end:]))
    return re.compile("".join(parts))


def counters_in_name(name: str, template: str) -> dict[str, float] | None:
    """Reads the counters back out of a file name, or returns None if ``template`` did not make it.

    >>> counters_in_name("ep1-ba20-rank0.pt", "ep{epoch}-ba{batch}-rank{rank}.pt")
    {'epoch': 1, 'batch': 20}
    """
    match = _pattern(template).fullmatch(name)
    if match is None:
        return None
    return {
        key: float(text) if key in _SECONDS else int(text)
        for key, text in match.groupdict().items()
        if key in _COUNTERS or key in _SECONDS
    }


def step_of_name(name: str, template: str) -> tuple[float, ...] | None:
    """Returns a key that orders the files of one template by training time, or None for a stranger.

    >>> sorted(["ba100", "ba9", "ba99"], key=lambda name: step_of_name(name, "ba{batch}"))
    ['ba9', 'ba99', 'ba100']
    """
    counters = counters_in_name(name, template)
    if counters is None:
        return None
    order = (*_GROWING, "total_wct", *_WITHIN_EPOCH)
    return tuple(counters[key] for key in order if key in counters)


def files_of_template(
    folder: str | os.PathLike[str], template: str
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yields each name below ``folder`` that ``template`` can have made, with its counters."""
    root = Path(folder)
    template = template.lstrip("/")
    for path in root.glob("/".join(["*"] * (template.count("/") + 1))):
        name = path.relative_to(root).as_posix()
        counters = counters_in_name(name, template)
        if counters is not None:
            yield name, counters


def ensure_folder_is_empty(folder_name: str | os.PathLike[str]) -> None:
    """Raises FileExistsError unless the folder holds nothing but hidden files and folders."""
    for _root, folders, files in os.walk(folder_name):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        visible = [name for name in files if not name.startswith(".")]
        if visible:
            raise FileExistsError(
                f"{folder_name} is not empty: it holds {visible[0]!r}. Choose another folder, or "
                "clear this one.",
            )


def ensure_folder_has_no_conflicting_files(
    folder_name: str | os.PathLike[str],
    filename: str,
    timestamp: _TimestampLike,
) -> None:
    """Raises FileExistsError if a file of the template ``filename`` is later than ``timestamp``.

    Such a file is of another, longer run: this one would overwrite it, or take it for its own.

    Args:
        folder_name: Where to look.
        filename: The template of the names, with placeholders.
        timestamp: The run's current time.
    """
    for name, counters in files_of_template(folder_name, filename):
        refuse_later_name(os.path.join(folder_name, name), counters, timestamp)


def refuse_later_name(name: str, counters: dict[str, float], timestamp: _TimestampLike) -> None:
    """Raises FileExistsError if the counters in a name are later than ``timestamp``."""
    if _is_later(counters, timestamp):
        raise FileExistsError(
            f"{name} is later than this run, which stands at epoch {int(timestamp.epoch)}, batch "
            f"{int(timestamp.batch)}: the folder belongs to another run. Choose another folder or "
            "run_name, resume that run with autoresume=True, or set save_overwrite=True.",
        )


def _is_later(counters: dict[str, float], timestamp: _TimestampLike) -> bool:
    for key in _GROWING:
        if key in counters and counters[key] > int(getattr(timestamp, key)):
            return True
    if "total_wct" in counters and counters["total_wct"] > timestamp.total_wct.total_seconds():
        return True
    # A counter that starts anew with each epoch says something only within the present epoch.
    if any(key in counters for key in ("batch", "sample", "token")) or counters.get("epoch") != int(
        timestamp.epoch
    ):
        return False
    return any(
        counters[key] > int(getattr(timestamp, key)) for key in _WITHIN_EPOCH if key in counters
    )
