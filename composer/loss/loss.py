"""Losses that take class indices or class probabilities, and the Dice loss."""

import warnings

import torch
import torch.nn.functional as F
from torch.nn.modules.loss import _Loss

from composer.loss.utils import ensure_targets_one_hot, infer_target_type

__all__ = ["DiceLoss", "binary_cross_entropy_with_logits", "loss_registry", "soft_cross_entropy"]

# Probabilities are summed in the precision of the model; this much missing is only rounding.
_ROUNDING = 1e-3
_SMOOTH = 1e-5


def binary_cross_entropy_with_logits(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: str = "sum",
    pos_weight: torch.Tensor | None = None,
    scale_by_batch_size: bool = True,
) -> torch.Tensor:
    """Returns the binary cross entropy of each class; class indices are made one-hot.

    Negative indices do not count, neither in the sum nor in what it is divided by.

    Args:
        input: Logits.
        target: Class indices or probabilities.
        weight: Factor of each element.
        reduction: ``'none'``, ``'mean'`` or ``'sum'``.
        pos_weight: Factor of the positive part of each class.
        scale_by_batch_size: Divides the result by the number of samples (the size of dimension 0,
            less those without a target).
    """
    if infer_target_type(input, target) == "one_hot":
        kept = torch.ones_like(input[:, :1])
    else:
        kept = (target >= 0).unsqueeze(1).to(input.dtype)
        target = _one_hot_or_ignored(input, target)
    weight = kept if weight is None else kept * weight
    loss = F.binary_cross_entropy_with_logits(
        input, target.float(), weight, reduction=reduction, pos_weight=pos_weight
    )
    if reduction == "mean":
        loss = loss / kept.mean()
    return loss / kept.flatten(1).any(1).sum() if scale_by_batch_size else loss


def soft_cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """Returns the cross entropy for class indices or for class probabilities.

    The mean over probabilities is per unit of probability: a row of zeros, which an ignored target
    becomes, does not count.

    Args:
        input: Logits, with the classes in dimension 1.
        target: Class indices, or class probabilities of the same shape as the logits.
        weight: Factor of each class.
        ignore_index: Class index that does not count; indices only.
        reduction: ``'none'``, ``'mean'`` or ``'sum'``.

    Raises:
        ValueError: If ``reduction`` is none of these, or no target has any probability.
    """
    if infer_target_type(input, target) == "indices":
        return F.cross_entropy(
            input, target, weight, ignore_index=ignore_index, reduction=reduction
        )
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"reduction={reduction!r} is not one of 'none', 'mean' and 'sum'.")
    if ignore_index != -100:
        warnings.warn(
            "ignore_index is not supported for class probabilities; rows without probability are "
            "ignored.",
            stacklevel=2,
        )
    log_probabilities = F.log_softmax(input, dim=1)
    if weight is not None:
        log_probabilities = log_probabilities * weight.view(-1, *[1] * (input.ndim - 2))
    losses = -(target * log_probabilities).sum(dim=1)
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    total = target.sum()
    count = losses.numel()
    if total <= 0:
        raise ValueError(
            "No targets have nonzero probability, so their mean loss does not exist; give the "
            "batch at least one target that is not ignored."
        )
    if total < count * (1 - _ROUNDING):
        warnings.warn("Some targets have less than 1 total probability.", stacklevel=2)
    return losses.sum() / total


class DiceLoss(_Loss):
    """One minus the Dice (or Jaccard) overlap of predicted and true segments.

    Args:
        sigmoid: Applies a sigmoid to the input.
        softmax: Applies a softmax over dimension 1 to the input.
        squared_pred: Squares targets and predictions in the denominator.
        jaccard: Measures intersection over union instead.
        batch: Adds up the overlaps over the batch before the fraction is formed.
        ignore_absent_classes: Leaves out the classes that the target does not have.
        reduction: ``'none'``, ``'mean'`` or ``'sum'``.
    """

    def __init__(
        self,
        sigmoid: bool = False,
        softmax: bool = False,
        squared_pred: bool = False,
        jaccard: bool = False,
        batch: bool = False,
        ignore_absent_classes: bool = False,
        reduction: str = "mean",
    ) -> None:
        if sigmoid and softmax:
            raise ValueError("DiceLoss takes sigmoid=True or softmax=True, but not both.")
        if reduction not in ("none", "mean", "sum"):
            raise ValueError(f"reduction={reduction!r} is not one of 'none', 'mean' and 'sum'.")
        super().__init__(reduction=reduction)
        self.sigmoid = sigmoid
        self.softmax = softmax
        self.squared_pred = squared_pred
        self.jaccard = jaccard
        self.batch = batch
        self.ignore_absent_classes = ignore_absent_classes

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns the loss of ``input`` (classes in dimension 1); negative labels do not count."""
        kept = None
        if infer_target_type(input, target) == "indices":
            kept = (target >= 0).unsqueeze(1)
            target = _one_hot_or_ignored(input, target)
        if target.shape != input.shape:
            raise AssertionError(
                f"The target of shape {tuple(target.shape)} does not match the input of shape "
                f"{tuple(input.shape)}."
            )
        if self.softmax and input.shape[1] == 1:
            warnings.warn(
                "softmax=True does nothing useful for a single class; use sigmoid=True.",
                stacklevel=2,
            )
        probabilities = self._activate(input)
        if kept is not None:
            probabilities = probabilities * kept
        dims = ([0] if self.batch else []) + list(range(2, input.ndim))
        intersection = _sum(target * probabilities, dims)
        power = 2 if self.squared_pred else 1
        in_target = _sum(target**power, dims)
        denominator = in_target + _sum(probabilities**power, dims)
        if self.jaccard:
            denominator = 2.0 * (denominator - intersection)
        loss = 1.0 - (2.0 * intersection + _SMOOTH) / (denominator + _SMOOTH)
        if self.ignore_absent_classes:
            loss = loss[in_target > 0]
        return self._reduce(loss, input.ndim)

    def _activate(self, input: torch.Tensor) -> torch.Tensor:
        if self.sigmoid:
            return torch.sigmoid(input)
        if self.softmax:
            return torch.softmax(input, dim=1)
        return input

    def _reduce(self, loss: torch.Tensor, ndim: int) -> torch.Tensor:
        if self.reduction == "mean":
            return loss.mean()
        if self.reduction == "sum":
            return loss.sum()
        return loss.reshape(list(loss.shape) + [1] * (ndim - loss.ndim))


def _one_hot_or_ignored(input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Makes indices one-hot where the caller masks the ignored ones, of which there is no news."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ensure_targets_one_hot(input, target)


def _sum(tensor: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return tensor.sum(dim=dims) if dims else tensor


loss_registry = {
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    "soft_cross_entropy": soft_cross_entropy,
}
