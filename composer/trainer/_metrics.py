"""Metrics of the latest training batch, and the metrics of each evaluator."""

import copy
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from composer.core.evaluator import Evaluator
from composer.core.logger import Logger
from composer.core.state import State
from composer.models.base import ComposerModel
from composer.utils.misc import model_eval_mode


class TrainMetrics:
    """Keeps the training metrics of the current batch; with none asked for it costs nothing."""

    def __init__(
        self,
        state: State,
        logger: Logger,
        module: ComposerModel,
        autocast: Callable[[], AbstractContextManager[Any]],
    ):
        self.state = state
        self.logger = logger
        self.module = module
        self.autocast = autocast
        # The base class's eval_forward hands the outputs back; another may run the model again.
        reuses_outputs = type(module).eval_forward is ComposerModel.eval_forward
        self.mode = nullcontext if reuses_outputs else partial(model_eval_mode, module)

    def reset(self) -> None:
        """Starts a new batch."""
        for metric in self.state.train_metrics.values():
            metric.reset()

    def keep(self, batch: Any) -> Any:
        """Returns the micro-batch as it is now, if a metric will read it (it may be changed)."""
        return copy.copy(batch) if self.state.train_metrics else None

    def update(self, batch: Any, outputs: Any) -> None:
        """Adds a micro-batch, from the outputs that the training pass gave."""
        if not self.state.train_metrics:
            return
        with torch.no_grad(), self.mode(), self.autocast():
            eval_outputs = self.module.eval_forward(batch, outputs)
            for metric in self.state.train_metrics.values():
                self.module.update_metric(batch, eval_outputs, metric)

    def compute_and_log(self) -> None:
        """Computes the latest batch's metrics over all ranks; logs ``metrics/train/<name>``."""
        if not self.state.train_metrics:
            return
        values = {name: metric.compute() for name, metric in self.state.train_metrics.items()}
        self.state.train_metric_values.update(values)
        self.logger.log_metrics({f"metrics/train/{name}": v for name, v in values.items()})


def compute_eval_metrics(
    state: State, logger: Logger, label: str, metrics: dict[str, Any]
) -> dict[str, Any]:
    """Computes an evaluator's metrics over all ranks into the state, and logs them."""
    values = {name: metric.compute() for name, metric in metrics.items()}
    state.eval_metrics.setdefault(label, {}).update(metrics)
    state.eval_metric_values.update(values)
    logger.log_metrics({f"metrics/{label}/{name}": value for name, value in values.items()})
    undefined = [name for name, value in values.items() if _is_nan(value)]
    if undefined:
        warnings.warn(
            f"{', '.join(undefined)} of evaluator {label!r} is NaN: its data has no target (every "
            "label is -100; check truncation and prompt masking), or the model's outputs are NaN."
        )
    return values


def _is_nan(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and bool(value.isnan())


def metrics_on_device(state: State, metrics: dict[str, Any]) -> dict[str, Any]:
    """Moves metrics to where outputs will be (to the CPU for MPS, which lacks double precision)."""
    if state.device.name == "mps":
        return {name: metric.to("cpu") for name, metric in metrics.items()}
    return {name: state.device.module_to_device(metric) for name, metric in metrics.items()}


def metrics_of_evaluators(
    model: ComposerModel, evaluators: Sequence[Evaluator]
) -> dict[str, dict[str, Any]]:
    """Gives each evaluator its own copy of the model's metrics that it asks for, by label."""
    available = model.get_metrics(is_train=False)
    return {
        evaluator.label: {
            name: copy.deepcopy(metric)
            for name, metric in available.items()
            if _is_wanted(name, evaluator.metric_names)
        }
        for evaluator in evaluators
    }


def _is_wanted(name: str, patterns: Sequence[str] | None) -> bool:
    if patterns is None:
        return True
    return any(re.match(f".*{pattern}.*", name, re.IGNORECASE) for pattern in patterns)
