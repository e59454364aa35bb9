"""An optimizer that leaves everything as it is."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

__all__ = ["NoOp"]


class NoOp(Optimizer):
    """Takes steps that change nothing; for measuring everything else.

    Args:
        params: Parameters or groups of them.
    """

    def __init__(self, params: Iterable[torch.Tensor] | Iterable[dict[str, Any]]) -> None:
        super().__init__(params, {"lr": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Runs the closure and changes nothing."""
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()
