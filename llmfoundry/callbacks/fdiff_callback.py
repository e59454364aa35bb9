"""How much each metric has changed since it was last known."""

from typing import Any

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State

__all__ = ["FDiffMetrics"]


class FDiffMetrics(Callback):
    """Logs the change of the loss and of metrics under the metric's name and ``_fdiff``.

    Args:
        diff_train_metrics: Follows the training loss and the training metrics.
        diff_eval_metrics: Follows the metrics of every evaluator.
    """

    def __init__(self, diff_train_metrics: bool = False, diff_eval_metrics: bool = True) -> None:
        super().__init__()
        self.diff_train_metrics = diff_train_metrics
        self.diff_eval_metrics = diff_eval_metrics
        self.last: dict[str, float] = {}

    def batch_end(self, state: State, logger: Logger) -> None:
        """Logs the changes of the training loss and metrics."""
        if not self.diff_train_metrics:
            return
        values: dict[str, Any] = {
            f"metrics/train/{name}": value for name, value in state.train_metric_values.items()
        }
        self._log(values | (state.total_loss_dict or {}), logger)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Logs the changes of the metrics of the evaluator that has just ended."""
        if not self.diff_eval_metrics:
            return
        label = state.dataloader_label
        metrics = state.eval_metrics.get(label, {}) if label is not None else {}
        values = {f"metrics/{label}/{name}": metrics[name].compute() for name in metrics}
        self._log(values, logger)

    def _log(self, values: dict[str, Any], logger: Logger) -> None:
        numbers = {key: float(value) for key, value in values.items()}
        changes = {
            f"{key}_fdiff": value - self.last[key]
            for key, value in numbers.items()
            if key in self.last
        }
        self.last |= numbers
        if changes:
            logger.log_metrics(changes)
