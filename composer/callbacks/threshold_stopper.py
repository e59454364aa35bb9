"""Stops a run that is good enough."""

import torch

from composer.callbacks._watched_metric import (
    Comparison,
    check_dataloader_label,
    get_comparison,
    get_metric_value,
)
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State


class ThresholdStopper(Callback):
    """Stops training as soon as a metric passes a threshold.

    Args:
        monitor: The metric's name.
        dataloader_label: The label of the dataloader: an evaluator's, or ``"train"``.
        threshold: The value to pass.
        comp: ``"greater"``, ``"less"``, or a function of (value, threshold) that says whether to
            stop; None decides by the name (less for loss, error and perplexity).
        stop_on_batch: Look at a training metric after every batch too, not only after an epoch.
    """

    def __init__(
        self,
        monitor: str,
        dataloader_label: str,
        threshold: float,
        *,
        comp: str | Comparison | None = None,
        stop_on_batch: bool = False,
    ) -> None:
        self.monitor = monitor
        self.dataloader_label = dataloader_label
        self.threshold = torch.tensor(threshold)
        self.comp_func = get_comparison(comp, monitor)
        self.stop_on_batch = stop_on_batch

    def fit_start(self, state: State, logger: Logger) -> None:
        """Refuses a label that no dataloader has."""
        del logger
        check_dataloader_label(state, self.dataloader_label)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Looks at the metric of an evaluator."""
        del logger
        self._check(state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Looks at a training metric."""
        del logger
        self._check(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Looks at a training metric, if asked to."""
        del logger
        if self.stop_on_batch:
            self._check(state)

    def _check(self, state: State) -> None:
        if state.dataloader_label != self.dataloader_label:
            return
        value = get_metric_value(state, self.dataloader_label, self.monitor)
        if self.comp_func(value, self.threshold):
            state.stop_training()
