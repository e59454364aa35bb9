"""A gradient scaler for optimizers that run the forward and backward passes themselves."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState

from composer.utils import dist

__all__ = ["ClosureGradScaler", "takes_closure"]


def takes_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Tells whether an optimizer runs the forward and backward passes itself (SAM, LBFGS)."""
    if getattr(optimizer, "_step_supports_amp_closure", False):
        return True
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


class ClosureGradScaler(GradScaler):
    """Scales fp16 losses for optimizers that call a closure, some of them several times a step.

    Torch's scaler refuses closures, because it unscales before the optimizer's step, when such an
    optimizer has no gradients yet. This one unscales at the end of each run of the closure, and the
    closure returns None where a gradient overflowed on any rank, so that the optimizer can skip.
    """

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Steps ``optimizer`` with the keyword ``closure``, unscaling after each run of it.

        Raises:
            ValueError: If there is no closure.
        """
        closure: Callable[..., Any] | None = kwargs.pop("closure", None)
        if args or kwargs or closure is None:
            raise ValueError(
                "ClosureGradScaler.step takes exactly one argument besides the optimizer, "
                "`closure=`; use torch.amp.GradScaler for an optimizer without a closure."
            )
        if not self._enabled:
            return optimizer.step(closure=closure)

        def unscaling_closure(**closure_kwargs: Any) -> Any:
            self._make_ready(optimizer)
            result = closure(**closure_kwargs)
            return result if self._unscale_and_agree(optimizer) else None

        return optimizer.step(closure=unscaling_closure)

    def _make_ready(self, optimizer: torch.optim.Optimizer) -> None:
        # The closure may run again within one step: each run starts from no gradients.
        self._per_optimizer_states[id(optimizer)]["stage"] = OptState.READY
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.grad = None

    def _unscale_and_agree(self, optimizer: torch.optim.Optimizer) -> bool:
        """Returns True if no rank met an infinity; all ranks must take the same way."""
        self._check_scale_growth_tracker("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.READY:  # the trainer may have unscaled for its events
            self.unscale_(optimizer)
        found = sum(value.item() for value in state["found_inf_per_device"].values())
        if dist.get_world_size() > 1:
            device = next(iter(state["found_inf_per_device"].values())).device
            flag = torch.tensor(found, device=device)
            dist.all_reduce(flag, reduce_operation="MAX")
            found = flag.item()
        return found == 0

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Grows or shrinks the scale, alike on all ranks."""
        if self._enabled and new_scale is None and dist.get_world_size() > 1:
            for state in self._per_optimizer_states.values():
                for found_inf in state["found_inf_per_device"].values():
                    dist.all_reduce(found_inf, reduce_operation="SUM")
        super().update(new_scale)
