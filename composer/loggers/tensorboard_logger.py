"""Writes event files for TensorBoard."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from composer.core.logger import Logger
from composer.core.state import State
from composer.loggers._service import ServiceLogger, to_arrays, to_numbers
from composer.utils import dist

__all__ = ["TensorboardLogger"]


class TensorboardLogger(ServiceLogger):
    """Writes metrics, hyperparameters, tables, images and histograms for TensorBoard.

    A run that is resumed from its own checkpoint goes on in its folder; what an earlier process
    wrote after the checkpoint is hidden, so that each step shows once.

    Args:
        log_dir: The folder; events are in ``<log_dir>/<run_name>``. By default
            ``tensorboard_logs``.
        flush_interval: Every so many batches the file is written out and uploaded; so it is at the
            end of each epoch and evaluation.
        rank_zero_only: Log of rank 0 only; otherwise each rank has a folder below the run's.
    """

    package: ClassVar[str] = "tensorboard"
    extra: ClassVar[str] = "tensorboard"

    def __init__(
        self, log_dir: str | None = None, flush_interval: int = 100, rank_zero_only: bool = True
    ) -> None:
        super().__init__(rank_zero_only)
        if flush_interval < 1:
            raise ValueError(f"flush_interval={flush_interval!r} must be at least one batch.")
        self.log_dir = log_dir
        self.flush_interval = flush_interval
        self.rank_zero_only = rank_zero_only
        self.run_name: str | None = None
        self.writer: Any = None
        self.hyperparameters: dict[str, Any] = {}
        self.current_metrics: dict[str, Any] = {}
        self._step: int | None = None
        self._of_this_step: dict[str, float] = {}
        self._at_checkpoint: dict[str, Any] = {}
        self._old_files: set[Path] = set()

    def init(self, state: State, logger: Logger) -> None:
        """Opens the event file."""
        del logger
        self.run_name = state.run_name
        self._open()

    def state_dict(self) -> dict[str, Any]:
        """Returns the metrics of the present step, which a resumed run finds hidden."""
        return {"run_name": self.run_name, "step": self._step, "metrics": self._of_this_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the metrics of the step at which the checkpoint was saved."""
        self._at_checkpoint = state

    def after_load(self, state: State, logger: Logger) -> None:
        """Hides what an earlier process logged from the checkpoint's step on."""
        if self.writer is None or state.timestamp.batch.value == 0 or not self._old_files:
            return
        step = state.timestamp.batch.value
        self.writer.close()
        self._open(purge_step=step)
        kept = self._at_checkpoint
        if kept.get("run_name") == self.run_name and kept.get("step") == step:
            self.log_metrics(kept["metrics"], step)

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Keeps the hyperparameters; they are written with the results of each evaluation."""
        self.hyperparameters.update(hyperparameters)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Writes the metrics that are numbers."""
        if self.writer is None:
            return
        if step != self._step:
            self._step, self._of_this_step = step, {}
        for name, number in to_numbers(metrics).items():
            self.writer.add_scalar(name, number, step)
            self._of_this_step[name] = self.current_metrics[name] = number

    def log_table(
        self,
        columns: list[str],
        rows: list[list[Any]],
        name: str = "Table",
        step: int | None = None,
    ) -> None:
        """Writes a table as Markdown."""
        if self.writer is not None:
            lines = [columns, ["---"] * len(columns), *rows]
            text = "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)
            self.writer.add_text(name, text, step)

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
        """Writes images; masks are left out, TensorBoard draws none."""
        del masks, mask_class_labels, use_table
        if self.writer is None:
            return
        arrays = [np.atleast_3d(array) for array in to_arrays(images, channels_last)]
        if len({array.shape for array in arrays}) == 1:
            self.writer.add_images(name, np.stack(arrays), step, dataformats="NHWC")
            return
        for number, array in enumerate(arrays):
            self.writer.add_image(f"{name}/{number}", array, step, dataformats="HWC")

    def log_distribution(self, name: str, values: Any, step: int | None = None) -> None:
        """Writes a histogram."""
        if self.writer is not None:
            self.writer.add_histogram(name, values, step)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Flushes and uploads, if this batch is due."""
        if state.timestamp.batch.value % self.flush_interval == 0:
            self._flush(logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Flushes and uploads."""
        self._flush(logger)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Writes the hyperparameters with the newest metrics beside them; flushes and uploads."""
        if self.writer is not None:
            self._write_hyperparameters(state.timestamp.batch.value)
        self._flush(logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Flushes and uploads."""
        super().fit_end(state, logger)
        self._flush(logger)

    def close(self, state: State, logger: Logger) -> None:
        """Uploads and closes the event file."""
        self._flush(logger)
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    def _open(self, purge_step: int | None = None) -> None:
        if not self._enabled:
            return
        from torch.utils.tensorboard import SummaryWriter  # a second of imports

        folder = self._folder()
        self._old_files = set(folder.glob("events.out.tfevents.*"))
        self.writer = SummaryWriter(str(folder), purge_step=purge_step)

    def _folder(self) -> Path:
        folder = Path(self.log_dir or "tensorboard_logs") / str(self.run_name)
        return folder / f"rank{dist.get_global_rank()}" if self._is_of_one_rank else folder

    def _flush(self, logger: Logger) -> None:
        if self.writer is None:
            return
        self.writer.flush()
        for path in set(self._folder().glob("events.out.tfevents.*")) - self._old_files:
            name = f"tensorboard_logs/{{run_name}}/{path.stem}-{{rank}}"
            logger.upload_file(name, path, overwrite=True)

    def _write_hyperparameters(self, step: int) -> None:
        from torch.utils.tensorboard.summary import hparams

        results = {
            f"hparams/{name}": value
            for name, value in self.current_metrics.items()
            if "metric" in name or "loss" in name
        }
        settings = {name: _setting(value) for name, value in self.hyperparameters.items()}
        # Not add_hparams, which would make a folder of its own for each evaluation.
        for summary in hparams(settings, results):
            self.writer.file_writer.add_summary(summary)
        for name, value in results.items():
            self.writer.add_scalar(name, value, step)


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", "<br>")


def _setting(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, torch.Tensor)) else str(value)
