"""Targets as class probabilities, laid out as the logits are."""

import torch

from composer.loss.utils import check_for_index_targets


def class_axis(logits: torch.Tensor, targets: torch.Tensor) -> int:
    """Returns the axis of the logits that the classes are on.

    It is axis 1, as torch's losses have it, unless only the last one fits the targets: logits of a
    language model are (batch, time, vocabulary), its labels (batch, time).

    Raises:
        ValueError: If the targets fit neither.
    """
    if logits.ndim > 1:
        if targets.shape in (logits.shape, logits.shape[:1] + logits.shape[2:]):
            return 1
        if targets.shape == logits.shape[:-1]:
            return logits.ndim - 1
    raise ValueError(
        f"Targets of shape {tuple(targets.shape)} do not fit logits of shape "
        f"{tuple(logits.shape)}: they are class indices, with the shape of the logits without "
        "their class axis (1, or the last), or class probabilities, with the same shape"
    )


def as_probabilities(
    logits: torch.Tensor, targets: torch.Tensor, smoothing: float = 0.0
) -> torch.Tensor:
    """Returns the targets as class probabilities of the logits' shape, as floats.

    Negative indices, which mark targets to ignore, become rows of zeros.

    Args:
        logits: What the targets are for.
        targets: Class indices, or class probabilities.
        smoothing: Spreads this part of each target over all classes; rows of zeros stay so.

    Raises:
        ValueError: If targets and logits do not fit, or class indices are no integers.
    """
    axis = class_axis(logits, targets)
    share = smoothing / logits.shape[axis]
    if targets.shape == logits.shape:
        given = targets.float()
        if not smoothing:
            return given
        return given * (1 - smoothing) + given.any(axis, keepdim=True) * share
    if not check_for_index_targets(targets):
        raise ValueError(f"Class indices must be integers, and these are {targets.dtype}")
    indices = targets.long().unsqueeze(axis)
    is_kept = (indices >= 0).float()
    # Written once: with a vocabulary it is as large as the logits.
    spread = (is_kept * share).expand(logits.shape).contiguous()
    return spread.scatter_(axis, indices.clamp(min=0), is_kept * (1 - smoothing + share))
