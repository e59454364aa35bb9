"""Finding the metric that a callback watches, and knowing which of two values is better."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State

Comparison = Callable[[Any, Any], Any]

_NAMED_COMPARISONS: dict[str, Comparison] = {
    "greater": torch.greater,
    "gt": torch.greater,
    "less": torch.less,
    "lt": torch.less,
}
_LOWER_IS_BETTER = ("loss", "error", "perplexity")


def get_comparison(comp: str | Comparison | None, monitor: str) -> Comparison:
    """Returns the function that says whether its first argument is better than its second.

    Without ``comp``, lower is better for names with ``loss``, ``error`` or ``perplexity`` in them,
    and higher is better for all others.
    """
    if callable(comp):
        return comp
    if comp is None:
        lower_is_better = any(word in monitor.lower() for word in _LOWER_IS_BETTER)
        return torch.less if lower_is_better else torch.greater
    if comp.lower() not in _NAMED_COMPARISONS:
        raise ValueError(
            f"comp={comp!r} is unknown; use one of {', '.join(_NAMED_COMPARISONS)}, or a function "
            "of two values."
        )
    return _NAMED_COMPARISONS[comp.lower()]


def check_dataloader_label(state: State, dataloader_label: str) -> None:
    """Raises ``ValueError`` if no dataloader of the run has the label: it would never stop."""
    labels = [str(state.dataloader_label), *(str(each.label) for each in state.evaluators)]
    if dataloader_label not in labels:
        raise ValueError(
            f"dataloader_label={dataloader_label!r} is none of the run's: {', '.join(labels)}."
        )


def get_metrics(state: State, dataloader_label: str) -> Mapping[str, Any]:
    """Returns the metrics of that dataloader, by name."""
    metrics = state.eval_metrics.get(dataloader_label)
    return (state.train_metrics or {}) if metrics is None else metrics


def get_metric_value(state: State, dataloader_label: str, monitor: str) -> torch.Tensor:
    """Returns the metric's latest value for that dataloader; without one, a ``ValueError``."""
    metrics = get_metrics(state, dataloader_label)
    if monitor not in metrics:
        raise ValueError(
            f"Couldn't find the metric {monitor!r} with the dataloader label {dataloader_label!r}; "
            f"this label has: {', '.join(metrics) or 'no metrics'}."
        )
    return torch.as_tensor(metrics[monitor].compute()).detach().cpu()


class MetricWatcher(Callback):
    """Judges a metric whenever its dataloader ends.

    Args:
        monitor: The metric's name.
        dataloader_label: The label of the dataloader: an evaluator's, or ``"train"``.
        comp: As for `get_comparison`.
        looks_at_batches: Whether a training metric is judged after each batch, too.
    """

    def __init__(
        self,
        monitor: str,
        dataloader_label: str,
        comp: str | Comparison | None,
        looks_at_batches: bool,
    ) -> None:
        self.monitor = monitor
        self.dataloader_label = dataloader_label
        self.comp_func = get_comparison(comp, monitor)
        self._looks_at_batches = looks_at_batches

    def judge(self, value: torch.Tensor, state: State) -> None:
        """Does what is to be done about the metric's latest value."""
        raise NotImplementedError

    def fit_start(self, state: State, logger: Logger) -> None:
        """Refuses a label that no dataloader has."""
        check_dataloader_label(state, self.dataloader_label)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Looks at the metric of an evaluator."""
        self._look(state)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Looks at a training metric."""
        self._look(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Looks at a training metric, if asked to."""
        if self._looks_at_batches:
            self._look(state)

    def _look(self, state: State) -> None:
        if state.dataloader_label == self.dataloader_label:
            self.judge(get_metric_value(state, self.dataloader_label, self.monitor), state)
