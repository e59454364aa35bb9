"""Logs to Comet."""

from typing import Any, ClassVar

import numpy as np

from composer.core.logger import Logger
from composer.core.state import State
from composer.loggers._service import (
    ServiceLogger,
    to_arrays,
    to_masks,
    to_numbers,
    to_plain,
    to_vector,
    unless_silent,
)

__all__ = ["CometMLLogger"]


class CometMLLogger(ServiceLogger):
    """Logs metrics, hyperparameters, tables, images and histograms to Comet.

    Args:
        workspace: The workspace.
        project_name: The project.
        log_code: Let Comet keep the program's source.
        log_graph: Let Comet keep the model's graph.
        name: The experiment's name; by default the name of the run.
        rank_zero_only: Log of rank 0 only; otherwise each rank has an experiment of its own.
        exp_kwargs: More arguments of ``comet_ml.Experiment``; with ``offline_directory`` the
            experiment is kept there, to be sent by ``comet upload``.
    """

    package: ClassVar[str] = "comet_ml"
    extra: ClassVar[str] = "comet"

    def __init__(
        self,
        workspace: str | None = None,
        project_name: str | None = None,
        log_code: bool = False,
        log_graph: bool = False,
        name: str | None = None,
        rank_zero_only: bool = True,
        exp_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(rank_zero_only)
        self.name = name
        given = {"workspace": workspace, "project_name": project_name}
        self._settings = {"log_code": log_code, "log_graph": log_graph, **(exp_kwargs or {})}
        self._settings |= {key: value for key, value in given.items() if value is not None}
        self._experiment: Any = None

    @property
    def experiment(self) -> Any:
        """Comet's experiment, made when it is first asked for; None on ranks that are silent."""
        if self._experiment is None and self._enabled:
            is_offline = "offline_directory" in self._settings
            kind = "OfflineExperiment" if is_offline else "Experiment"
            self._experiment = getattr(self._service, kind)(**self._settings)
            self._experiment.log_other("Created from", "mosaicml-composer")
        return self._experiment

    def init(self, state: State, logger: Logger) -> None:
        """Names the experiment."""
        del logger
        self.name = self._name_of_rank(self.name or state.run_name)
        if self._enabled:
            self.experiment.set_name(self.name)

    @unless_silent
    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Logs hyperparameters."""
        self.experiment.log_parameters(hyperparameters)

    @unless_silent
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Logs metrics of a step."""
        self.experiment.log_metrics(to_numbers(metrics), step=step)

    @unless_silent
    def log_table(
        self,
        columns: list[str],
        rows: list[list[Any]],
        name: str = "Table",
        step: int | None = None,
    ) -> None:
        """Keeps a table as ``<name>.csv``."""
        del step
        plain = [[to_plain(cell) for cell in row] for row in rows]
        self.experiment.log_table(f"{name}.csv", plain, headers=columns)

    @unless_silent
    def log_images(
        self,
        images: Any,
        name: str = "Image",
        channels_last: bool = False,
        step: int | None = None,
        masks: dict[str, Any] | None = None,
        mask_class_labels: dict[int, str] | None = None,
        use_table: bool = True,
    ) -> None:
        """Logs images, and each mask as an image beside its own."""
        del mask_class_labels, use_table
        arrays = to_arrays(images, channels_last)
        for number, array in enumerate(arrays):
            self.experiment.log_image(array, name=f"{name}_{number}", step=step)
        for number, of_image in enumerate(to_masks(masks, len(arrays))):
            for mask_name, mask in of_image.items():
                self.experiment.log_image(
                    mask.astype(np.float32), name=f"{name}_{number}_{mask_name}", step=step
                )

    @unless_silent
    def log_distribution(self, name: str, values: Any, step: int | None = None) -> None:
        """Logs a histogram."""
        self.experiment.log_histogram_3d(to_vector(values), name=name, step=step)

    def post_close(self) -> None:
        """Sends the rest."""
        if self._experiment is not None:
            self._experiment.end()
