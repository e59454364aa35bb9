"""Logs to Trackio: a local dashboard, or one in a Hugging Face Space."""

from typing import Any, ClassVar

from composer.loggers._service import (
    ResumingServiceLogger,
    to_arrays,
    to_numbers,
    to_plain,
    to_unit_range,
    unless_silent,
)

__all__ = ["TrackioLogger"]


class TrackioLogger(ResumingServiceLogger):
    """Logs metrics, hyperparameters, tables and images to Trackio.

    A run that is resumed from its own checkpoint goes on in its Trackio run; steps before the last
    that is there are not sent again.

    Args:
        project: The project.
        name: The run's name there; by default the name of the run.
        group: The group.
        space_id: A Hugging Face Space; by default everything stays on this machine (``trackio show
            --project <project>``).
        rank_zero_only: Log of rank 0 only; otherwise each rank has a run of its own.
        init_kwargs: More arguments of ``trackio.init``.
    """

    package: ClassVar[str] = "trackio"
    extra: ClassVar[str] = "trackio"

    def __init__(
        self,
        project: str = "llmfoundry",
        name: str | None = None,
        group: str | None = None,
        space_id: str | None = None,
        rank_zero_only: bool = True,
        init_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(rank_zero_only)
        self.project = project
        self.name = name
        given = {"group": group, "space_id": space_id}
        self._settings = dict(init_kwargs or {})
        self._settings |= {key: value for key, value in given.items() if value is not None}
        self._first_step = 0

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Adds to the run's configuration; what comes after its first metrics is not shown."""
        self._when_started(lambda: self._run.config.update(hyperparameters), is_news=False)

    @unless_silent
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Logs metrics of a step."""
        news = to_numbers(metrics)
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
        table = self._service.Table(columns, plain, allow_mixed_types=True)
        self._when_started(lambda: self._log({name: table}, step))

    @unless_silent
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
        """Logs images under ``<name>/<number>``; masks are left out, Trackio draws none."""
        del masks, mask_class_labels, use_table
        shown = {
            f"{name}/{number}": self._service.Image(_to_bytes(to_unit_range(array)))
            for number, array in enumerate(to_arrays(images, channels_last))
        }
        self._when_started(lambda: self._log(shown, step))

    def _finish(self) -> None:
        is_current = self._service.context_vars.current_run.get() is self._run
        (self._service if is_current else self._run).finish()

    def _start(self) -> Any:
        name = self._name_of_rank(self.name or self._run_name)
        resume = "allow" if self._resumed else "never"
        settings = {"embed": False, "resume": resume, **self._settings}
        run = self._service.init(self.project, name, **settings)
        # The last step that is there may be incomplete. Trackio has no public word for it.
        self._first_step = getattr(run, "_next_step", 0) - 1 if self._resumed else 0
        return run

    def _identity(self) -> dict[str, Any]:
        return {"project": self.project, "name": self._run.name}

    def _log(self, data: dict[str, Any], step: int | None) -> None:
        if step is None or step >= self._first_step:
            self._run.log(data, step=step)


def _to_bytes(image: Any) -> Any:
    """The whole numbers from 0 to 255 that Trackio shows as they are."""
    whole = image if image.dtype.kind in "ui" else (image * 255).round()
    return whole.astype("uint8")
