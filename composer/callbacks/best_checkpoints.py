"""Keeps the checkpoints of the best evaluations, beside those of the latest batches."""

import logging
import math
import os
from typing import Any

from composer.callbacks._watched_metric import (
    check_dataloader_label,
    get_metric_value,
    get_metrics,
)
from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.checkpoint.naming import as_seen_from
from composer.checkpoint.whole_run import path_of_save
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils import dist
from composer.utils.file_helpers import is_uri, parse_uri
from composer.utils.file_names import format_name_with_dist

log = logging.getLogger(__name__)

_LOWER_IS_BETTER = ("loss", "error", "perplexity", "entropy")


class BestCheckpoints(Callback):
    """Saves a checkpoint when a metric is among its best so far; the best is never deleted.

    After an evaluation (for a training metric: after an epoch) the run is saved if its value is one
    of the ``num_to_keep`` best; then ``best-rank0.pt`` is pointed at the best, and last the worst
    one beyond that number goes. Names, whole files, uploads and resumption are CheckpointSaver's,
    which works on beside this one as ever.

    Args:
        monitor: The metric's name; None takes the first one that the dataloader's metrics have, and
            does nothing in a run without evaluation.
        dataloader_label: The label of the dataloader: an evaluator's, or ``"train"``.
        mode: ``"min"`` or ``"max"``; None asks the metric (``higher_is_better``) or else its name:
            lower is better for loss, error, perplexity and entropy.
        num_to_keep: How many of the best to keep. Copies in a store are all kept.
        folder: Where to save, as CheckpointSaver's.
        filename: The name in ``folder``; not one that the run's CheckpointSaver could give.
        best_filename: The name of the link to the best.
        overwrite: Allow a new run in a folder with checkpoints of an older one.
        weights_only: Save the weights only.
    """

    def __init__(
        self,
        monitor: str | None = None,
        dataloader_label: str = "eval",
        mode: str | None = None,
        num_to_keep: int = 1,
        folder: str | os.PathLike[str] = "{run_name}/checkpoints",
        filename: str = "best-ep{epoch}-ba{batch}-rank{rank}.pt",
        best_filename: str = "best-rank{rank}.pt",
        *,
        overwrite: bool = False,
        weights_only: bool = False,
    ) -> None:
        if mode not in (None, "min", "max"):
            raise ValueError(f"mode={mode!r} is unknown; use 'min', 'max' or None.")
        if num_to_keep < 1:
            raise ValueError(f"num_to_keep={num_to_keep!r} must be at least 1: the best is kept.")
        self.monitor = monitor
        self.dataloader_label = dataloader_label
        self.mode = mode
        self.num_to_keep = num_to_keep
        self.overwrite = overwrite
        remote_folder = (
            parse_uri(str(folder))[2] if is_uri(str(folder)) else "{run_name}/checkpoints"
        )
        self.saver = CheckpointSaver(
            folder,
            filename,
            remote_file_name=f"{remote_folder}/{filename}",
            latest_filename=best_filename,
            latest_remote_file_name=f"{remote_folder}/{best_filename}",
            save_interval=lambda state, event: False,
            overwrite=overwrite,
            weights_only=weights_only,
        )
        self.best: dict[str, float] = {}
        """The values of the best checkpoints, by path, in the order of training."""
        self._value: float | None = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the best values and what the saver keeps."""
        return {"best": dict(self.best), "mode": self.mode, **self.saver.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on comparing with the best of the run before."""
        self.best = dict(state["best"])
        self.mode = self.mode or state["mode"]
        self.saver.load_state_dict(state)

    def init(self, state: State, logger: Logger) -> None:
        """Makes the folder."""
        if sum(isinstance(each, BestCheckpoints) for each in state.callbacks) > 1:
            raise ValueError(
                "A run can have one BestCheckpoints: callbacks are kept in checkpoints by the name "
                "of their class. Subclass it under another name for a second metric."
            )
        self.saver.init(state, logger)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Refuses a label that no dataloader has, and the folder of another run."""
        if self.monitor is None and not state.evaluators:
            log.warning("BestCheckpoints saves nothing: the run has no evaluation to compare.")
        else:
            check_dataloader_label(state, self.dataloader_label)
        # A run that was killed may have saved its best later than where it is resumed.
        self.saver.overwrite = self.overwrite or state.timestamp.batch.value > 0
        self.saver.fit_start(state, logger)
        folder = format_name_with_dist(self.saver.folder, state.run_name)
        self.best = {as_seen_from(folder, path) or path: v for path, v in self.best.items()}

    def save_interval(self, state: State, event: Event) -> bool:
        """Says whether it may save at this event, to those who choose which weights are saved."""
        if self.dataloader_label == state.dataloader_label:
            return event is Event.EPOCH_CHECKPOINT
        return event is Event.EVAL_AFTER_ALL and self._value is not None

    def eval_end(self, state: State, logger: Logger) -> None:
        """Looks at the metric of an evaluator."""
        if state.dataloader_label == self.dataloader_label:
            self._value = self._get_value(state)

    def eval_after_all(self, state: State, logger: Logger) -> None:
        """Saves, if the evaluation within training was one of the best."""
        self._save_if_among_best(state, logger)

    def eval_standalone_end(self, state: State, logger: Logger) -> None:
        """Forgets what an evaluation outside of training gave."""
        self._value = None

    def epoch_checkpoint(self, state: State, logger: Logger) -> None:
        """Saves, if a training metric is one of the best."""
        if state.dataloader_label == self.dataloader_label:
            self._value = self._get_value(state)
            self._save_if_among_best(state, logger)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Raises what went wrong with an upload."""
        self.saver.batch_end(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Waits for the uploads."""
        self.saver.fit_end(state, logger)

    def post_close(self) -> None:
        """Waits for the uploads and frees what they need."""
        self.saver.post_close()

    def _get_value(self, state: State) -> float:
        if self.monitor is None:
            self.monitor = next(iter(get_metrics(state, self.dataloader_label)), "")
        if self.mode is None:
            self.mode = _infer_mode(state, self.dataloader_label, self.monitor)
        value = get_metric_value(state, self.dataloader_label, self.monitor).item()
        return dist.from_rank_zero(lambda: value)

    def _save_if_among_best(self, state: State, logger: Logger) -> None:
        value, self._value = self._value, None
        if value is None:
            return
        if math.isnan(value):
            log.warning("%s is NaN, which is never the best: not saved.", self.monitor)
            return
        if len(self.best) >= self.num_to_keep and not self._is_better(value, self._worst()):
            return
        is_best = all(self._is_better(value, other) for other in self.best.values())
        path = path_of_save(state, self.saver.filename.format(state, keep_placeholders=True))
        # Listed before it is written, so that the checkpoint names itself.
        before = dict(self.best)
        self.best.pop(path, None)
        self.best[path] = value
        try:
            self.saver._save_checkpoint(state, logger, move_links=is_best)
        except BaseException:
            self.best = before
            raise
        while len(self.best) > self.num_to_keep:
            # Of equals the later goes.
            worst = [path for path, each in self.best.items() if each == self._worst()][-1]
            del self.best[worst]
            if worst in self.saver.saved_checkpoints:
                self.saver._delete(worst, state)

    def _is_better(self, value: float, other: float) -> bool:
        return value < other if self.mode == "min" else value > other

    def _worst(self) -> float:
        return max(self.best.values()) if self.mode == "min" else min(self.best.values())


def _infer_mode(state: State, dataloader_label: str, monitor: str) -> str:
    metric = get_metrics(state, dataloader_label).get(monitor)
    higher_is_better = getattr(metric, "higher_is_better", None)
    if higher_is_better is None:
        higher_is_better = not any(word in monitor.lower() for word in _LOWER_IS_BETTER)
    return "max" if higher_is_better else "min"
