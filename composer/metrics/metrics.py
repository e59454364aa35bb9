"""Metrics of classification and segmentation."""

from collections.abc import Callable

import torch
from torchmetrics import Metric

from composer.loss.loss import soft_cross_entropy

__all__ = ["CrossEntropy", "Dice", "LossMetric", "MIoU"]


class MIoU(Metric):
    """Mean over the classes that occur of intersection over union, in percent.

    Args:
        num_classes: Number of classes.
        ignore_index: Label of the pixels that do not count.
    """

    full_state_update = False
    total_intersect: torch.Tensor
    total_union: torch.Tensor

    def __init__(self, num_classes: int, ignore_index: int = -1) -> None:
        super().__init__(dist_sync_on_step=True)
        self.num_classes = num_classes
        self.ignore_index = ignore_index
        zeros = torch.zeros(num_classes, dtype=torch.float64)
        self.add_state("total_intersect", default=zeros.clone(), dist_reduce_fx="sum")
        self.add_state("total_union", default=zeros.clone(), dist_reduce_fx="sum")

    def update(self, logits: torch.Tensor, targets: torch.Tensor) -> None:
        """Adds a batch of logits (classes in dimension 1) and labels."""
        kept = targets != self.ignore_index
        preds, targets = logits.argmax(dim=1)[kept], targets[kept]
        intersect = self._count(preds[preds == targets])
        self.total_intersect += intersect
        self.total_union += self._count(preds) + self._count(targets) - intersect

    def _count(self, labels: torch.Tensor) -> torch.Tensor:
        return torch.bincount(labels, minlength=self.num_classes)[: self.num_classes]

    def compute(self) -> torch.Tensor:
        """Returns the mean in percent."""
        seen = self.total_union > 0
        return 100 * (self.total_intersect[seen] / self.total_union[seen]).mean().float()


class Dice(Metric):
    """Mean over foreground classes and batches of the Dice score, in percent (0 is background).

    Args:
        num_classes: Number of foreground classes (or of all classes: both are accepted).
    """

    full_state_update = False
    n_updates: torch.Tensor
    dice: torch.Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__(dist_sync_on_step=True)
        self.num_classes = num_classes
        self.add_state("n_updates", default=torch.zeros(1), dist_reduce_fx="sum")
        self.add_state("dice", default=torch.zeros(1), dist_reduce_fx="sum")

    def update(self, preds: torch.Tensor, targets: torch.Tensor) -> None:
        """Adds a batch of logits (classes in dimension 1) and labels."""
        channels = preds.shape[1]
        if self.num_classes not in (channels, channels - 1):
            raise ValueError(
                f"Dice was made for num_classes={self.num_classes}, but the predictions have "
                f"{channels} channels, that is {channels - 1} foreground classes."
            )
        self.n_updates += 1
        self.dice += self.compute_stats(preds, targets).mean()

    def compute(self) -> float:
        """Returns the mean in percent, rounded to two decimals."""
        return round(float(100 * self.dice / self.n_updates), 2)

    @staticmethod
    def compute_stats(preds: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Returns the score of each foreground class.

        A class that occurs neither in the labels nor in the predictions scores 1.
        """
        labels = preds.argmax(dim=1)
        foreground = torch.arange(1, preds.shape[1], device=preds.device).view(-1, 1)
        predicted, true = labels.reshape(1, -1) == foreground, targets.reshape(1, -1) == foreground
        hits = (predicted & true).sum(dim=1)
        size = predicted.sum(dim=1) + true.sum(dim=1)
        return torch.where(size > 0, 2 * hits / size.clamp(min=1), 1.0)


class _MeanOfBatches(Metric):
    """Mean over the update calls of what a loss gives for each."""

    full_state_update = False
    sum_loss: torch.Tensor
    total_batches: torch.Tensor

    def __init__(self, dist_sync_on_step: bool = False) -> None:
        super().__init__(dist_sync_on_step=dist_sync_on_step)
        self.add_state("sum_loss", default=torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("total_batches", default=torch.tensor(0), dist_reduce_fx="sum")

    def _add(self, loss: torch.Tensor) -> None:
        self.sum_loss += loss
        self.total_batches += 1

    def compute(self) -> torch.Tensor:
        """Returns the mean over the batches so far."""
        return self.sum_loss / self.total_batches


class CrossEntropy(_MeanOfBatches):
    """Mean over the batches of the cross entropy, for class indices or probabilities.

    Args:
        ignore_index: Label that does not count.
        dist_sync_on_step: Synchronises over the ranks on every call of ``forward``.
    """

    def __init__(self, ignore_index: int = -100, dist_sync_on_step: bool = False) -> None:
        super().__init__(dist_sync_on_step)
        self.ignore_index = ignore_index

    def update(self, preds: torch.Tensor, targets: torch.Tensor) -> None:
        """Adds a batch of logits and targets."""
        self._add(soft_cross_entropy(preds, targets, ignore_index=self.ignore_index))


class LossMetric(_MeanOfBatches):
    """Mean over the batches of any loss.

    Args:
        loss_function: Takes predictions and targets and returns one number.
        dist_sync_on_step: Synchronises over the ranks on every call of ``forward``.
    """

    def __init__(
        self,
        loss_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        dist_sync_on_step: bool = False,
    ) -> None:
        super().__init__(dist_sync_on_step)
        self.loss_function = loss_function

    def update(self, preds: torch.Tensor, targets: torch.Tensor) -> None:
        """Adds a batch of predictions and targets."""
        self._add(self.loss_function(preds, targets))
