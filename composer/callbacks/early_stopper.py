"""Stops a run that no longer improves."""

from typing import Any

import torch

from composer.callbacks._watched_metric import Comparison, MetricWatcher
from composer.core.duration import Time
from composer.core.state import State
from composer.core.time_unit import TimeUnit
from composer.core.timestamp import Timestamp


class EarlyStopper(MetricWatcher):
    """Stops training when a metric has not improved for longer than ``patience``.

    The metric is looked at whenever its dataloader ends: after each evaluation, or after each epoch
    (and batch, if ``patience`` counts batches) for a training metric. The best value and its time
    are kept in checkpoints.

    Args:
        monitor: The metric's name.
        dataloader_label: The label of the dataloader: an evaluator's, or ``"train"``.
        comp: ``"greater"``, ``"less"``, or a function of (value, best) that says whether value is
            better; None decides by the name (less for loss, error and perplexity).
        min_delta: A change must be larger than this to count.
        patience: How long to wait for an improvement; a number counts epochs; epochs or batches.
    """

    def __init__(
        self,
        monitor: str,
        dataloader_label: str,
        comp: str | Comparison | None = None,
        min_delta: float = 0.0,
        patience: int | str | Time[int] = 1,
    ) -> None:
        self.min_delta = abs(min_delta)
        self.patience = Time.from_input(patience, TimeUnit.EPOCH)
        if self.patience.unit not in (TimeUnit.EPOCH, TimeUnit.BATCH):
            raise ValueError(
                f"patience={patience!r} must be in epochs or batches, such as '3ep' or '500ba'."
            )
        by_batch = self.patience.unit is TimeUnit.BATCH
        super().__init__(monitor, dataloader_label, comp, looks_at_batches=by_batch)
        self.best: torch.Tensor | None = None
        self.best_occurred: Timestamp | None = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the best value and when it occurred."""
        if self.best is None or self.best_occurred is None:
            return {}
        return {"best": self.best.item(), "best_occurred": self.best_occurred.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues waiting from the best value of the loaded run."""
        if "best" not in state:
            return
        self.best = torch.tensor(state["best"])
        self.best_occurred = Timestamp()
        self.best_occurred.load_state_dict(state["best_occurred"])

    def judge(self, value: torch.Tensor, state: State) -> None:
        """Notes an improvement, or stops, if there was none for too long."""
        if self._is_improvement(value):
            self.best = value
            self.best_occurred = state.timestamp
            return
        assert self.best_occurred is not None  # the first value is an improvement, see below
        unit = self.patience.unit
        if state.timestamp.get(unit) - self.best_occurred.get(unit) > self.patience:
            state.stop_training()

    def _is_improvement(self, value: torch.Tensor) -> bool:
        if self.best is None:
            return True
        return bool(self.comp_func(value, self.best)) and bool(
            torch.abs(value - self.best) > self.min_delta
        )
