"""Loss scaling for fp16, chosen once; in every other precision it costs nothing."""

from collections.abc import Callable
from typing import Any

import torch

from composer.core.precision import Precision
from composer.core.state import State
from composer.optim.grad_scaler import ClosureGradScaler, takes_closure


class NoScaling:
    """Leaves losses and gradients as they are (fp32, bf16, fp8)."""

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss unchanged."""
        return loss

    def unscale(self) -> None:
        """Does nothing: the gradients have their true size."""

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Steps the optimizer."""
        optimizer.step()

    def step_with_closure(
        self, optimizer: torch.optim.Optimizer, closure: Callable[..., Any]
    ) -> None:
        """Steps an optimizer that runs the forward and backward passes itself."""
        optimizer.step(closure)

    def update(self) -> None:
        """Does nothing."""


class GradScaling(NoScaling):
    """Scales fp16 losses so that small gradients survive, and skips steps that overflowed."""

    def __init__(self, state: State):
        self.state = state

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss times the current scale."""
        return self.state.scaler.scale(loss)

    def unscale(self) -> None:
        """Divides the accumulated gradients by the scale, so that events see their true size."""
        for optimizer in self.state.optimizers:
            self.state.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Steps the optimizer unless a gradient overflowed."""
        self.state.scaler.step(optimizer)

    def step_with_closure(
        self, optimizer: torch.optim.Optimizer, closure: Callable[..., Any]
    ) -> None:
        """Steps through a ``ClosureGradScaler``, which unscales inside the closure."""
        self.state.scaler.step(optimizer, closure=closure)

    def update(self) -> None:
        """Grows or shrinks the scale after a batch."""
        self.state.scaler.update()


def make_scaler(state: State) -> torch.amp.GradScaler | None:
    """Returns the scaler that fp16 needs (one for closures if the optimizer takes one).

    Raises:
        ValueError: if the optimizer takes a closure and knows nothing of scaled losses.
    """
    if state.precision is not Precision.AMP_FP16:
        return None
    if all(getattr(o, "_step_supports_amp_closure", False) for o in state.optimizers):
        return ClosureGradScaler()
    takers = [type(o).__name__ for o in state.optimizers if takes_closure(o)]
    if takers:
        raise ValueError(
            f"precision={state.precision.value} scales losses, and {', '.join(takers)} runs the "
            "forward and backward passes itself without unscaling gradients; use amp_bf16 or fp32, "
            "or another optimizer."
        )
    return torch.amp.GradScaler("cuda")


def scaling_of(state: State) -> NoScaling:
    """Chooses the scaling of a run by its precision."""
    return GradScaling(state) if state.precision is Precision.AMP_FP16 else NoScaling()
