"""What the two stoppers share: finding a metric, and knowing which of two values is better."""

from collections.abc import Callable
from typing import Any

import torch

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


def get_metric_value(state: State, dataloader_label: str, monitor: str) -> torch.Tensor:
    """Returns the metric's latest value for that dataloader; without one, a ``ValueError``."""
    metrics = state.eval_metrics.get(dataloader_label)
    if metrics is None:
        metrics = state.train_metrics or {}
    if monitor not in metrics:
        raise ValueError(
            f"Couldn't find the metric {monitor!r} with the dataloader label {dataloader_label!r}; "
            f"this label has: {', '.join(metrics) or 'no metrics'}."
        )
    return torch.as_tensor(metrics[monitor].compute()).detach().cpu()
