"""Evaluators out of whatever a user gave for ``eval_dataloader``."""

import warnings
from collections.abc import Sequence
from typing import Any

from composer.core.evaluator import Evaluator, ensure_evaluator
from composer.trainer._options import as_list


def parse_evaluators(
    loaders: Any,
    metric_names: Sequence[str],
    interval: Any,
    subset_num_batches: int,
    *,
    warn_unused: bool = True,
) -> list[Evaluator]:
    """Returns evaluators for loaders; the given interval and subset fill in what they leave out.

    Raises:
        ValueError: if Evaluators and other loaders are mixed, or a loader without length is to be
            read whole.
    """
    if loaders is None or (isinstance(loaders, list | tuple) and not loaders):
        if warn_unused and (subset_num_batches != -1 or interval not in (0, 1)):
            warnings.warn(
                f"eval_interval={interval!r} and eval_subset_num_batches={subset_num_batches} have "
                "no effect without an eval_dataloader; give one."
            )
        return []
    given = as_list(loaders) if _holds_evaluators(loaders) else [loaders]
    evaluators = [ensure_evaluator(x, default_metric_names=list(metric_names)) for x in given]
    for evaluator in evaluators:
        if evaluator.eval_interval is None:
            if interval is None:
                raise ValueError(
                    f"eval_interval=None says nothing about evaluator {evaluator.label!r}; give 0 "
                    "for never, or an interval like '1ep'"
                )
            evaluator.eval_interval = interval
        if evaluator.subset_num_batches is None:
            evaluator.subset_num_batches = subset_num_batches
        check_is_finite(evaluator)
    return evaluators


def _holds_evaluators(loaders: Any) -> bool:
    if isinstance(loaders, Evaluator):
        return True
    if not isinstance(loaders, list | tuple):
        return False
    found = [isinstance(x, Evaluator) for x in loaders]
    if any(found) and not all(found):
        raise ValueError(
            "Mixing Evaluator with other classes is not allowed, please wrapall other classes with "
            "the Evaluator class."
        )
    return any(found)


def check_is_finite(evaluator: Evaluator) -> None:
    """Refuses to evaluate on all of a loader that says no length: it may never end."""
    if evaluator.subset_num_batches not in (None, -1):
        return
    try:
        length = len(evaluator.dataloader.dataloader)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        length = None
    if length is None:
        raise ValueError(
            f"the dataloader of evaluator {evaluator.label!r} has no length, and "
            "eval_subset_num_batches is -1 (all of it), so evaluation might not end; set "
            "eval_subset_num_batches to a number of batches."
        )
