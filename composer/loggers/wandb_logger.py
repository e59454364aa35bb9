"""Logs to Weights & Biases."""

import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any, ClassVar

from composer.core.state import State
from composer.loggers._service import (
    ResumingServiceLogger,
    cleaned,
    to_arrays,
    to_masks,
    to_plain,
    to_vector,
    unless_silent,
)
from composer.utils import dist

__all__ = ["WandBLogger"]


class WandBLogger(ResumingServiceLogger):
    """Logs metrics, hyperparameters, tables, images, histograms and files to Weights & Biases.

    A run that is resumed from its own checkpoint goes on in its W&B run. Steps that the W&B run
    already has are not sent again: it would refuse them.

    Args:
        project: The project.
        group: The group; with ``rank_zero_only=False``, by default the run's name.
        name: The run's name there; by default the name of the run.
        entity: The user or team.
        tags: The run's tags.
        log_artifacts: Keep uploaded files, such as checkpoints, as artifacts.
        rank_zero_only: Log of rank 0 only; otherwise each rank has a run of its own.
        init_kwargs: More arguments of ``wandb.init``.

    """

    package: ClassVar[str] = "wandb"
    extra: ClassVar[str] = "wandb"

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        name: str | None = None,
        entity: str | None = None,
        tags: list[str] | None = None,
        log_artifacts: bool = False,
        rank_zero_only: bool = True,
        init_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(rank_zero_only)
        if log_artifacts and rank_zero_only and dist.get_world_size() > 1:
            warnings.warn(
                "With log_artifacts=True only rank 0's files become artifacts. If other ranks "
                "write files, too, `rank_zero_only` should be set to False."
            )
        given = {"project": project, "group": group, "name": name, "entity": entity, "tags": tags}
        self._settings = dict(init_kwargs or {})
        self._settings |= {key: value for key, value in given.items() if value is not None}
        self._log_artifacts = log_artifacts
        self._first_step = 0
        self.entity: str | None = self._settings.get("entity")
        self.project: str | None = self._settings.get("project")

    @property
    def run_dir(self) -> str | None:
        """The folder of the run's local files; None on silent ranks and before ``Event.INIT``."""
        self._begin()
        return None if self._run is None else self._run.dir

    @property
    def run_url(self) -> str | None:
        """The run's page; None offline, on silent ranks and before ``Event.INIT``."""
        self._begin()
        return None if self._run is None else self._run.url

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Adds to the run's configuration."""
        self._when_started(
            lambda: self._run.config.update(hyperparameters, allow_val_change=True), is_news=False
        )

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Logs metrics of a step."""
        news = dict(metrics)  # the caller may go on filling its own
        self._when_started(lambda: self._log(news, step))

    @unless_silent
    def log_table(
        self,
        columns: list[str],
        rows: list[list[Any]],
        name: str = "Table",
        step: int | None = None,
    ) -> None:
        """Logs a table."""
        plain = [[to_plain(cell) for cell in row] for row in rows]
        self._when_started(lambda: self._log({name: self._table(columns, plain)}, step))

    @unless_silent
    def log_images(
        self,
        images: Any,
        name: str = "Images",
        channels_last: bool = False,
        step: int | None = None,
        masks: dict[str, Any] | None = None,
        mask_class_labels: dict[int, str] | None = None,
        use_table: bool = False,
    ) -> None:
        """Logs images as a table called ``"<name> Table"``, or as a list, with masks over them."""
        arrays = to_arrays(images, channels_last)
        shown = [
            self._service.Image(array, masks=_described(of_image, mask_class_labels))
            for array, of_image in zip(arrays, to_masks(masks, len(arrays)), strict=True)
        ]
        if not use_table:
            self._when_started(lambda: self._log({name: shown}, step))
            return
        table = self._table(["Image"], [[image] for image in shown])
        self._when_started(lambda: self._log({f"{name} Table": table}, step))

    @unless_silent
    def log_distribution(self, name: str, values: Any, step: int | None = None) -> None:
        """Logs a histogram."""
        histogram = self._service.Histogram(to_vector(values))
        self._when_started(lambda: self._log({name: histogram}, step))

    def upload_file(
        self, state: State, remote_file_name: str, file_path: Path, *, overwrite: bool
    ) -> None:
        """Keeps a file as an artifact, if asked to; each upload of a name is a new version."""
        del overwrite  # a version is never replaced
        if not (self._enabled and self._log_artifacts):
            return
        extension = file_path.suffix.removeprefix(".")
        timestamp = state.timestamp
        counters = timestamp.state_dict().items()
        artifact = self._service.Artifact(
            name=_artifact_name(remote_file_name),
            type="model" if extension == "pt" else extension or "file",
            metadata={f"timestamp/{name}": _to_number(value) for name, value in counters},
        )
        artifact.add_file(os.path.abspath(file_path))
        aliases = ["latest", f"ep{timestamp.epoch.value}-ba{timestamp.batch.value}"]
        self._when_started(lambda: self._run.log_artifact(artifact, aliases=aliases))

    def can_upload_files(self) -> bool:
        """Says whether files become artifacts."""
        return self._log_artifacts

    def download_file(
        self,
        remote_file_name: str,
        destination: str,
        overwrite: bool = False,
        progress_bar: bool = True,
    ) -> None:
        """Fetches an artifact's file; a version may follow the name: ``name:v3``."""
        del progress_bar  # W&B shows its own
        if os.path.exists(destination) and not overwrite:
            raise FileExistsError(
                f"The file at {destination} already exists and overwrite is set to False."
            )
        name, _, version = remote_file_name.partition(":")
        place = [self.entity, self.project, f"{_artifact_name(name)}:{version or 'latest'}"]
        path = "/".join(part for part in place if part)
        try:
            artifact = self._service.Api().artifact(path)
        except self._service.errors.CommError as error:
            if "does not exist" in str(error) or "not found" in str(error):
                raise FileNotFoundError(f"There is no artifact {path} in W&B.") from error
            raise
        with tempfile.TemporaryDirectory() as folder:
            found = [path for path in Path(artifact.download(folder)).rglob("*") if path.is_file()]
            if len(found) != 1:
                raise RuntimeError(f"The artifact {path} holds {len(found)} files; one is needed.")
            shutil.move(found[0], destination)

    def _finish(self) -> None:
        self._run.finish(exit_code=0 if self._ended_well else 1)

    def _start(self) -> Any:
        settings = dict(self._settings)
        if self._is_of_one_rank:
            settings.setdefault("group", settings.get("name", self._run_name))
        settings["name"] = self._name_of_rank(settings.get("name", self._run_name))
        if self._resumed:
            settings.setdefault("id", self._resumed["id"])
            settings.setdefault("resume", "allow")
        run = self._service.init(**settings)
        self._first_step = run.starting_step
        self.entity, self.project = run.entity or self.entity, run.project
        return run

    def _identity(self) -> dict[str, Any]:
        run = self._run
        names = {"name": run.name, "project": run.project, "entity": run.entity}
        return {"id": run.id, "group": run.group, **names}

    def _log(self, data: dict[str, Any], step: int | None) -> None:
        if step is None or step >= self._first_step:
            self._run.log(data, step=step)

    def _table(self, columns: list[str], rows: list[list[Any]]) -> Any:
        return self._service.Table(columns=columns, data=rows, allow_mixed_types=True)


def _artifact_name(file_name: str) -> str:
    return cleaned(file_name, r"\w.\-")


def _described(masks: dict[str, Any], labels: dict[int, str] | None) -> dict[str, Any] | None:
    extra = {} if labels is None else {"class_labels": labels}
    return {name: {"mask_data": mask, **extra} for name, mask in masks.items()} or None


def _to_number(value: Any) -> float:
    return value.total_seconds() if hasattr(value, "total_seconds") else value
