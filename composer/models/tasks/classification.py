"""Any module as a classifier."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from composer.core.types import Batch
from composer.loss.loss import soft_cross_entropy
from composer.metrics.metrics import CrossEntropy
from composer.models.base import ComposerModel

__all__ = ["ComposerClassifier"]


class ComposerClassifier(ComposerModel):
    """Trains a module that maps inputs to logits on batches of ``(inputs, targets)``.

    Args:
        module: Maps the inputs to logits.
        num_classes: Number of classes; a ``num_classes`` of the module itself wins.
        train_metrics: Metrics of the training batches, accuracy by default.
        val_metrics: Metrics of the evaluation, cross entropy and accuracy by default.
        loss_fn: Takes logits and targets.

    Raises:
        ValueError: If the number of classes is needed for default metrics and not known.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        num_classes: int | None = None,
        train_metrics: Metric | MetricCollection | None = None,
        val_metrics: Metric | MetricCollection | None = None,
        loss_fn: Callable[..., Any] = soft_cross_entropy,
    ) -> None:
        super().__init__()
        self.module = module
        self._loss_fn = loss_fn
        self.num_classes = num_classes
        of_module = getattr(module, "num_classes", None)
        if of_module is not None:
            if num_classes is not None and num_classes != of_module:
                warnings.warn(
                    f"Specified num_classes={num_classes} does not match the module's "
                    f"num_classes={of_module}, which is used.",
                    stacklevel=2,
                )
            self.num_classes = of_module
        if self.num_classes is None and (train_metrics is None or val_metrics is None):
            raise ValueError(
                "num_classes is needed for the default metrics: pass num_classes, give the module "
                "an attribute of that name, or pass both train_metrics and val_metrics."
            )
        if train_metrics is None:
            train_metrics = MulticlassAccuracy(num_classes=self.num_classes, average="micro")
        if val_metrics is None:
            val_metrics = MetricCollection(
                [CrossEntropy(), MulticlassAccuracy(num_classes=self.num_classes, average="micro")]
            )
        self.train_metrics = train_metrics
        self.val_metrics = val_metrics

    # In this method's annotations TorchScript must know every type.
    def forward(self, batch: tuple[torch.Tensor, Any]) -> torch.Tensor:
        """Returns the logits of the inputs."""
        inputs, _ = batch
        return self.module(inputs)

    def loss(self, outputs: Any, batch: tuple[Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Returns what ``loss_fn`` makes of logits and targets."""
        _, targets = batch
        return self._loss_fn(outputs, targets, *args, **kwargs)

    def get_metrics(self, is_train: bool = False) -> dict[str, Metric]:
        """Returns the metrics by the names of their classes."""
        metrics = self.train_metrics if is_train else self.val_metrics
        if isinstance(metrics, MetricCollection):
            return {name: metric for name, metric in metrics.items() if isinstance(metric, Metric)}
        return {type(metrics).__name__: metrics}

    def update_metric(self, batch: Batch, outputs: Any, metric: Metric) -> None:
        """Adds a batch to a metric."""
        _, targets = batch
        metric.update(outputs, targets)
