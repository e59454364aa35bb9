"""The interface of what carries news of a run out: to a screen, a file or a service."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from composer.core.callback import Callback
from composer.core.state import State


class LoggerDestination(Callback, ABC):
    """Carries news out: a callback that also takes metrics, tables, images and files.

    Every method does nothing here: override what the destination can show or keep. Once work has
    started, an error of it is warned about once and stops nothing; see `composer.core.logger.tell`.
    """

    may_stop_training: ClassVar[bool] = False
    """Whether an error of this destination must end the run."""

    on_console: ClassVar[str | None] = None
    """What it shows on the console, a ``"progress bar"`` or ``"lines"``; a run has one of each."""

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Takes settings of the run."""

    def log_table(
        self,
        columns: list[str],
        rows: list[list[Any]],
        name: str = "Table",
        step: int | None = None,
    ) -> None:
        """Takes a table."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Takes metrics of a step, by name."""

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Takes what algorithms did."""

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
        """Takes images; see `Logger.log_images`."""

    def log_distribution(self, name: str, values: Any, step: int | None = None) -> None:
        """Takes the values of a histogram."""

    def upload_file(
        self, state: State, remote_file_name: str, file_path: Path, *, overwrite: bool
    ) -> None:
        """Takes a file to keep under a name; it may be deleted as soon as this returns.

        Args:
            state: The run's state.
            remote_file_name: The name to keep it under.
            file_path: Where it is.
            overwrite: Whether a file of that name may be replaced.
        """

    def download_file(
        self,
        remote_file_name: str,
        destination: str,
        overwrite: bool = False,
        progress_bar: bool = True,
    ) -> None:
        """Fetches a file that was uploaded.

        Args:
            remote_file_name: The name that it was kept under.
            destination: Where to put it.
            overwrite: Whether a file there may be replaced.
            progress_bar: Whether to show progress.

        Raises:
            FileNotFoundError: If there is no such file.
            NotImplementedError: If this destination gives no files back; see `can_download_file`.
        """
        del remote_file_name, destination, overwrite, progress_bar
        raise NotImplementedError(f"{type(self).__name__} cannot give files back")

    def upload_last(
        self,
        state: State,
        after: Sequence[str],
        index: tuple[str, Path],
        pointer: tuple[str, Path] | None,
    ) -> None:
        """Takes what makes the files of all ranks a checkpoint; called on rank 0.

        By default it is kept at once: who uploads in the background must wait for all ranks' files.

        Args:
            state: The run's state.
            after: Names of files, of whichever rank, that must be there before.
            index: Name and path of the checkpoint's index.
            pointer: The same of what leads to the newest checkpoint, kept after the index.
        """
        del after
        for name, path in (index, pointer) if pointer is not None else (index,):
            self.upload_file(state, name, path, overwrite=True)

    def can_upload_files(self) -> bool:
        """Says whether `upload_file` keeps files."""
        return False

    def can_download_file(self) -> bool:
        """Says whether `download_file` gives them back."""
        return type(self).download_file is not LoggerDestination.download_file

    def path_placeholders(self) -> dict[str, str]:
        """Returns what this destination can fill into paths, by placeholder; nothing by default."""
        return {}
