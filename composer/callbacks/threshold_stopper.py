"""Stops a run that is good enough."""

import torch

from composer.callbacks._watched_metric import Comparison, MetricWatcher
from composer.core.state import State


class ThresholdStopper(MetricWatcher):
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
        super().__init__(monitor, dataloader_label, comp, looks_at_batches=stop_on_batch)
        self.threshold = torch.tensor(threshold)
        self.stop_on_batch = stop_on_batch

    def judge(self, value: torch.Tensor, state: State) -> None:
        """Stops, if the value passed the threshold."""
        if self.comp_func(value, self.threshold):
            state.stop_training()
