"""The one door for news of a run: passes everything on to every destination."""

from __future__ import annotations

import logging
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from composer.core.protocols import DestinationLike
from composer.core.state import State
from composer.utils.file_names import format_name_with_dist
from composer.utils.iter_helpers import ensure_tuple

__all__ = ["Logger", "format_log_data_value", "tell"]

log = logging.getLogger(__name__)

_faulty: weakref.WeakSet[Any] = weakref.WeakSet()


def tell(destination: DestinationLike, call: Callable[..., object], *args: Any) -> None:
    """Calls a method of a destination; an error of it is warned about once and stops nothing.

    A run is worth more than its log. Destinations whose failure loses what the run is for, such as
    those that upload checkpoints, say so with ``may_stop_training``.
    """
    try:
        call(*args)
    except Exception as error:  # whatever somebody else's service raises
        if getattr(destination, "may_stop_training", False):
            raise
        name = type(destination).__name__
        log.debug("%s failed", name, exc_info=error)
        if destination not in _faulty:
            _faulty.add(destination)
            warnings.warn(
                f"{name} failed ({type(error).__name__}: {error}). The run goes on without what it "
                "should have told; later failures of it are only logged at level DEBUG",
                stacklevel=3,
            )


class Logger:
    """Passes metrics, tables, images and files on to every destination.

    Where a step may be given, it is the number of batches completed if it is not.

    Args:
        state: The run's state.
        destinations: Where the news goes.
    """

    def __init__(
        self,
        state: State,
        destinations: DestinationLike | Sequence[DestinationLike] | None = None,
    ) -> None:
        self._state = state
        self.destinations: tuple[DestinationLike, ...] = ensure_tuple(destinations)

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Passes on what algorithms did."""
        for destination in self.destinations:
            tell(destination, destination.log_traces, traces)

    def log_hyperparameters(self, parameters: dict[str, Any]) -> None:
        """Passes on settings of the run."""
        for destination in self.destinations:
            tell(destination, destination.log_hyperparameters, parameters)

    def log_table(
        self,
        columns: list[str],
        rows: list[list[Any]],
        name: str = "Table",
        step: int | None = None,
    ) -> None:
        """Passes on a table."""
        step = self._step(step)
        for destination in self.destinations:
            tell(destination, destination.log_table, columns, rows, name, step)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Passes on metrics, by name."""
        step = self._step(step)
        for destination in self.destinations:
            tell(destination, destination.log_metrics, metrics, step)

    def log_distribution(self, name: str, values: Any, step: int | None = None) -> None:
        """Passes on the values of a histogram, to the destinations that draw one."""
        step = self._step(step)
        for destination in self.destinations:
            tell(destination, destination.log_distribution, name, values, step)

    def log_images(
        self,
        images: Any,
        name: str = "Images",
        channels_last: bool = False,
        step: int | None = None,
        masks: dict[str, Any] | None = None,
        mask_class_labels: dict[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        """Passes on images.

        Args:
            images: Arrays or tensors, or a batch of them.
            name: What they are called.
            channels_last: Whether the last axis is the channels.
            step: The step.
            masks: Masks to draw over them, by name.
            mask_class_labels: Names of the masks' values.
            use_table: Whether a destination may show them as a table.
        """
        step = self._step(step)
        for destination in self.destinations:
            news = (images, name, channels_last, step, masks, mask_class_labels, use_table)
            tell(destination, destination.log_images, *news)

    def upload_file(
        self, remote_file_name: str, file_path: str | os.PathLike[str], *, overwrite: bool = False
    ) -> None:
        """Hands a file to every destination that keeps files.

        Args:
            remote_file_name: Its name there; ``{run_name}``, ``{rank}`` and so on are filled in.
            file_path: Where it is; filled in likewise.
            overwrite: Whether a file of that name may be replaced.
        """
        run_name = self._state.run_name
        file_path = format_name_with_dist(os.fspath(file_path), run_name)
        remote_file_name = format_name_with_dist(remote_file_name, run_name)
        for destination in self.destinations:
            upload = partial(destination.upload_file, overwrite=overwrite)
            tell(destination, upload, self._state, remote_file_name, Path(file_path))

    def upload_last(
        self, after: Sequence[str], index: tuple[str, str], pointer: tuple[str, str] | None
    ) -> None:
        """Hands what makes files of all ranks a checkpoint to every destination that keeps files.

        Args:
            after: Names of files, of whichever rank, that must be there before.
            index: Name and path of the checkpoint's index.
            pointer: The same of what leads to the newest checkpoint.
        """
        first = index[0], Path(index[1])
        second = None if pointer is None else (pointer[0], Path(pointer[1]))
        for destination in self.destinations:
            tell(destination, destination.upload_last, self._state, after, first, second)

    def has_file_upload_destination(self) -> bool:
        """Tells whether a destination keeps files."""
        return any(destination.can_upload_files() for destination in self.destinations)

    def path_placeholders(self) -> dict[str, str]:
        """Returns what the destinations can fill into paths, such as the id of an experiment."""
        placeholders: dict[str, str] = {}
        for destination in self.destinations:
            placeholders.update(destination.path_placeholders())
        return placeholders

    def _step(self, step: int | None) -> int:
        return self._state.timestamp.batch.value if step is None else step


def format_log_data_value(data: Any) -> str:
    """Returns a value as text for a log: floats with four decimals, tensors by shape."""
    if data is None:
        return "None"
    if isinstance(data, str):
        return f'"{data}"'
    if isinstance(data, int):
        return str(data)
    if isinstance(data, float):
        return f"{data:.4f}"
    if isinstance(data, torch.Tensor):
        if data.numel() == 1:
            return format_log_data_value(data.item())
        return "Tensor of shape " + str(data.shape)
    if getattr(data, "ndim", None) == 0:  # a scalar or an array of numpy that holds one number
        return format_log_data_value(data.item())
    if isinstance(data, Mapping):
        items = "".join(f'"{key}": {format_log_data_value(data[key])}, ' for key in data)
        return "{ " + items + "}"
    if isinstance(data, Iterable):
        return "[" + ", ".join(format_log_data_value(item) for item in data) + "]"
    return str(data)
