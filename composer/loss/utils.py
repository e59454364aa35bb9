"""Tells class indices from class probabilities, and turns the first into the second."""

import warnings

import torch
import torch.nn.functional as F

__all__ = ["check_for_index_targets", "ensure_targets_one_hot", "infer_target_type"]


def infer_target_type(input: torch.Tensor, targets: torch.Tensor) -> str:
    """Returns ``'indices'`` or ``'one_hot'``, by the shapes of targets and logits.

    Raises:
        RuntimeError: If the shapes are those of neither.
    """
    if input.shape == targets.shape:
        return "one_hot"
    if input.ndim == targets.ndim + 1:
        return "indices"
    raise RuntimeError(
        f"Unable to infer the kind of targets from logits of shape {tuple(input.shape)} and "
        f"targets of shape {tuple(targets.shape)}: targets are either class indices, with one "
        "dimension less than the logits, or class probabilities, with the same shape."
    )


def check_for_index_targets(targets: torch.Tensor) -> bool:
    """Returns True if the targets are of an integer type, which indices are."""
    return not targets.dtype.is_floating_point and not targets.dtype.is_complex


def ensure_targets_one_hot(
    input: torch.Tensor, targets: torch.Tensor, num_classes: int | None = None
) -> torch.Tensor:
    """Returns the targets as class probabilities in dimension 1, as floats.

    Negative indices, which mark targets to ignore, become rows of zeros, with a warning.

    Args:
        input: Logits, with the classes in dimension 1.
        targets: Class indices, or probabilities, which are returned as they are (as floats).
        num_classes: Number of classes, by default the size of the logits' dimension 1.

    Raises:
        ValueError: If the classes are not in dimension 1 of the logits.
    """
    if infer_target_type(input, targets) == "one_hot":
        return targets.float()
    # Language-model logits are (batch, time, vocab); taking time for classes would pass unnoticed.
    if input.shape[:1] + input.shape[2:] != targets.shape:
        raise ValueError(
            f"Class indices of shape {tuple(targets.shape)} do not match logits of shape "
            f"{tuple(input.shape)}, whose classes must be in dimension 1. Flatten logits of a "
            "language model to (batch * time, vocab) and labels to (batch * time), or move the "
            "vocabulary to dimension 1."
        )
    if bool((targets < 0).any()):
        warnings.warn(
            "Negative label indices are being ignored in conversion to one-hot labels.",
            stacklevel=2,
        )
    return _one_hot(targets, num_classes=num_classes or input.shape[1], dim=1).float()


def _one_hot(tensor: torch.Tensor, num_classes: int = -1, dim: int = -1) -> torch.Tensor:
    """Puts a dimension of classes at ``dim``; a negative index becomes all zeros.

    Args:
        tensor: Class indices.
        num_classes: Number of classes, or -1 for the largest index plus one.
        dim: Where the new dimension stands.
    """
    if not check_for_index_targets(tensor):
        raise ValueError(f"Class indices must be integers, but got {tensor.dtype}.")
    kept = tensor >= 0
    # Index 0 stands in for the ignored ones, since a negative index cannot be scattered.
    classes = torch.where(kept, tensor, torch.zeros_like(tensor)).long()
    return (F.one_hot(classes, num_classes) * kept.unsqueeze(-1)).movedim(-1, dim)
