"""Losses of any shape that a model may return, made one shape: a total and named parts."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch


class Losses:
    """Holds the loss to differentiate (``total``) and the named scalars to report (``parts``)."""

    def __init__(self, total: Any = 0.0, parts: dict[str, Any] | None = None):
        self.total = total
        self.parts: dict[str, Any] = parts if parts is not None else {}

    def add(self, other: "Losses", weight: float | torch.Tensor) -> None:
        """Adds ``weight`` times the parts of another set, detached, in float32 on their device."""
        for name, value in other.parts.items():
            share = value.detach().float() * weight  # a copy: the loss may be a parameter itself
            self.parts[name] = self.parts[name] + share if name in self.parts else share


def named_losses(loss: Any) -> Losses:
    """Turns what ``model.loss`` returned into a scalar total and its named parts.

    A tensor is averaged. A sequence is the sum of the averages of its entries, named ``loss0``,
    ``loss1``, ... when there are several. A mapping is the sum of its averages, unless it names its
    own ``total``.

    Raises:
        TypeError: for any other kind of value.
    """
    if isinstance(loss, torch.Tensor):
        total = loss.mean() if loss.dim() else loss
        return Losses(total, {"total": total})
    if isinstance(loss, Mapping):
        parts = {str(name): _scalar(value, str(name)) for name, value in loss.items()}
        if "total" not in parts:
            parts["total"] = _sum(list(parts.values()))
        return Losses(parts["total"], parts)
    if isinstance(loss, Sequence) and not isinstance(loss, str):
        values = [_scalar(value, f"loss{index}") for index, value in enumerate(loss)]
        parts = {f"loss{i}": v for i, v in enumerate(values)} if len(values) > 1 else {}
        parts["total"] = _sum(values)
        return Losses(parts["total"], parts)
    raise TypeError(
        f"model.loss returned {type(loss).__name__}; return a tensor, a sequence of tensors, or a "
        "mapping of names to tensors (its 'total', if present, is what is optimised)."
    )


def _scalar(value: Any, name: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"the loss {name!r} is {type(value).__name__}; it must be a tensor.")
    return value.mean() if value.dim() else value


def _sum(values: list[torch.Tensor]) -> torch.Tensor:
    if not values:
        raise ValueError("model.loss returned an empty collection; return at least one tensor.")
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total
