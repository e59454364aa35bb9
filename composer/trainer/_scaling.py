"""Who runs backward passes and steps, chosen once: torch, with a scaler for fp16, or DeepSpeed."""

from collections.abc import Callable
from typing import Any

import torch

from composer.core.precision import Precision
from composer.core.state import State
from composer.distributed.deepspeed import ZeroModel
from composer.optim.grad_scaler import ClosureGradScaler, takes_closure


class NoScaling:
    """Leaves losses and gradients as they are (fp32, bf16, fp8)."""

    def backward(self, loss: torch.Tensor, create_graph: bool = False) -> None:
        """Adds the gradients of a loss."""
        loss.backward(create_graph=create_graph)

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

    def backward(self, loss: torch.Tensor, create_graph: bool = False) -> None:
        """Adds the gradients of the loss times the current scale."""
        self.state.scaler.scale(loss).backward(create_graph=create_graph)

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


class EngineSteps(NoScaling):
    """Has DeepSpeed's engine run backward passes and steps; it scales fp16 losses by itself."""

    def __init__(self, model: ZeroModel):
        self.model = model

    def backward(self, loss: torch.Tensor, create_graph: bool = False) -> None:
        """Adds the gradients of a loss, and reduces them as the stage of ZeRO says."""
        del create_graph  # refused at start
        self.model.backward(loss)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clips the gradients and steps the optimizer on this rank's pieces."""
        del optimizer
        self.model.step()


def make_scaler(state: State) -> torch.amp.GradScaler | None:
    """Returns the scaler that fp16 needs (one for closures if the optimizer takes one).

    Raises:
        ValueError: if the optimizer takes a closure and knows nothing of scaled losses.
    """
    if state.precision is not Precision.AMP_FP16 or isinstance(state.model, ZeroModel):
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
    """Chooses the scaling of a run by its engine and its precision."""
    if isinstance(state.model, ZeroModel):
        return EngineSteps(state.model)
    return GradScaling(state) if state.precision is Precision.AMP_FP16 else NoScaling()
