"""A dataset to evaluate on, with its metrics and when to do it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from composer.core.data_spec import DataSpec, ensure_data_spec
from composer.core.duration import Time
from composer.core.event import Event
from composer.core.intervals import create_interval_scheduler
from composer.core.state import State

EvalInterval = Callable[[State, Event], bool]


class Evaluator:
    """Says what to evaluate on, with which metrics, and when.

    Args:
        label: Its name, which metrics are logged under.
        dataloader: What to evaluate on: a dataloader, a DataSpec, or a dict of its arguments.
        metric_names: Patterns of the model's metrics to compute; all of them if None.
        subset_num_batches: How many batches to use; -1 for all, None for the trainer's setting.
        eval_interval: How often, or a function of (state, event); None for the trainer's setting.
        device_eval_microbatch_size: Samples in a micro-batch; "auto" halves it when memory runs
            out; the dataloader's batch size if None.

    Raises:
        ValueError: If the metric names are not a list, or the size is no size.
        AttributeError: If no size is given and the dataloader has no batch size to go by.
    """

    _eval_interval: EvalInterval | None

    def __init__(
        self,
        *,
        label: str,
        dataloader: DataSpec | Iterable[Any] | dict[str, Any],
        metric_names: list[str] | None = None,
        subset_num_batches: int | None = None,
        eval_interval: int | str | Time[Any] | EvalInterval | None = None,
        device_eval_microbatch_size: int | str | float | None = None,
    ) -> None:
        self.label = label
        self.dataloader = ensure_data_spec(dataloader)
        if metric_names is not None and not isinstance(metric_names, list):
            raise ValueError(f"metric_names should be a list of strings, not {type(metric_names)}")
        self.metric_names: list[str] = [".*"] if metric_names is None else metric_names
        self.subset_num_batches = subset_num_batches
        self.eval_interval = eval_interval
        self.auto_microbatching = device_eval_microbatch_size == "auto"
        self.device_eval_microbatch_size = _microbatch_size(
            device_eval_microbatch_size, self.dataloader
        )

    @property
    def eval_interval(self) -> EvalInterval | None:
        """Says at an event whether to evaluate; set it with an interval or a function."""
        return self._eval_interval

    @eval_interval.setter
    def eval_interval(self, eval_interval: int | str | Time[Any] | EvalInterval | None) -> None:
        if eval_interval is None or callable(eval_interval):
            self._eval_interval = eval_interval
        else:
            self._eval_interval = create_interval_scheduler(
                eval_interval, checkpoint_events=False, final_events={Event.FIT_END}
            )


def ensure_evaluator(
    evaluator: Evaluator | DataSpec | Iterable[Any] | dict[str, Any],
    default_metric_names: list[str],
) -> Evaluator:
    """Returns an Evaluator of an Evaluator, or of a dataloader, with the label ``eval``.

    Args:
        evaluator: An Evaluator, a dataloader, a DataSpec or a dict of its arguments.
        default_metric_names: The metrics of one that is made here.
    """
    if isinstance(evaluator, Evaluator):
        return evaluator
    return Evaluator(label="eval", dataloader=evaluator, metric_names=default_metric_names)


def _microbatch_size(size: int | str | float | None, data_spec: DataSpec) -> int | float:
    if size == "auto":
        warnings.warn(
            "device_eval_microbatch_size='auto' is experimental: it starts at the batch size and "
            "is halved whenever memory runs out",
            category=UserWarning,
            stacklevel=3,
        )
    elif size is not None:
        if isinstance(size, bool) or not (isinstance(size, (int, float)) and size > 0):
            raise ValueError(
                f"device_eval_microbatch_size {size!r} must be a number above 0, 'auto' or None"
            )
        return size
    batch_size = getattr(data_spec.dataloader, "batch_size", None)
    if batch_size is None:
        raise AttributeError(
            "device_eval_microbatch_size was not given, and the dataloader has no batch_size to "
            "take instead; give it to the Evaluator"
        )
    return batch_size
