"""SAM: steps by the gradient at the worst point nearby, which takes a second pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.optim.grad_scaler import ClosureGradScaler, takes_closure

__all__ = ["SAM", "SAMOptimizer"]


class SAMOptimizer(Optimizer):
    """Wraps an optimizer for sharpness-aware minimisation (Foret et al., arXiv 2010.01412).

    Every ``interval`` steps the weights are moved up the gradient by ``rho``, the gradient is taken
    there, and the weights go back before the wrapped optimizer steps. Parameter groups and state
    are the wrapped optimizer's own.

    Args:
        base_optimizer: Takes the steps.
        rho: How far to look, as the length of the move over all parameters.
        epsilon: Added to the gradient's norm.
        interval: Steps from one look to the next; the others are plain.

    Raises:
        ValueError: For a negative ``rho``, no interval, or an optimizer that runs passes itself.
    """

    _step_supports_amp_closure = True

    def __init__(
        self,
        base_optimizer: Optimizer,
        rho: float = 0.05,
        epsilon: float = 1e-12,
        interval: int = 1,
        **kwargs: Any,
    ) -> None:
        _check_settings(rho, interval)
        if takes_closure(base_optimizer):
            raise ValueError(
                f"SAM cannot wrap {type(base_optimizer).__name__}, which runs the forward and "
                "backward passes itself; use an optimizer that takes gradients."
            )
        self.base_optimizer = base_optimizer
        self.rho = rho
        self.epsilon = epsilon
        self.interval = interval
        self.global_step = 0
        self._held: list[tuple[torch.Tensor, torch.Tensor]] = []
        super().__init__(base_optimizer.param_groups, {"rho": rho, "epsilon": epsilon, **kwargs})
        self._follow()

    def _follow(self) -> None:
        """Makes groups and state those of the wrapped optimizer, which may have replaced them."""
        self.param_groups = self.base_optimizer.param_groups
        self.state = self.base_optimizer.state

    def state_dict(self) -> dict[str, Any]:
        """Returns the wrapped optimizer's state."""
        return self.base_optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Gives the wrapped optimizer its state back."""
        self.base_optimizer.load_state_dict(state_dict)
        self._follow()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group to the wrapped optimizer."""
        if not any(group is param_group for group in self.base_optimizer.param_groups):
            self.base_optimizer.add_param_group(param_group)

    def step(self, closure: Callable[..., Any] | None = None) -> Any:  # type: ignore[override]
        """Takes one step; the closure runs forward and backward passes, maybe twice.

        A closure that returns None has met an infinite gradient: the step is left out. Without a
        closure there is nothing to look around with, and the wrapped optimizer steps.
        """
        if closure is None:
            return self.base_optimizer.step()
        looks_around = (self.global_step + 1) % self.interval == 0
        self.global_step += 1
        loss = closure(ddp_sync=False) if looks_around else closure()
        if loss is None:
            return None
        if not looks_around:
            self.base_optimizer.step()
            return loss
        self.first_step()
        if closure(loss_dict={}) is None:
            self.sub_e_w()
            return None
        self.second_step()
        return loss

    @torch.no_grad()
    def first_step(self) -> None:
        """Moves the weights by ``rho`` up the gradient, to take the gradient there."""
        trained = [
            (parameter, parameter.grad)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        scale = self.rho / (torch.nn.utils.get_total_norm([g for _, g in trained]) + self.epsilon)
        # Each rank moves its own way. Taken off again, the moves would leave other rounding errors
        # on each, and replicas would drift apart.
        self._held = [(parameter, parameter.clone()) for parameter, _ in trained]
        for parameter, gradient in trained:
            parameter.add_(gradient * scale.to(parameter))

    @torch.no_grad()
    def sub_e_w(self) -> None:
        """Puts the weights back to where `first_step` found them."""
        for parameter, weight in self._held:
            parameter.copy_(weight)
        self._held = []

    @torch.no_grad()
    def second_step(self) -> None:
        """Puts the weights back, and lets the wrapped optimizer step by the gradients there are."""
        self.sub_e_w()
        self.base_optimizer.step()


class SAM(Algorithm):
    """Wraps the run's optimizers in `SAMOptimizer` (Foret et al., arXiv 2010.01412).

    A step that looks around takes two forward and backward passes, and events within it fire twice.

    Args:
        rho: How far to look, as the length of the move over all parameters.
        epsilon: Added to the gradient's norm.
        interval: Steps from one look to the next; the others are plain.

    Raises:
        ValueError: For a negative ``rho``, or no interval.
    """

    def __init__(self, rho: float = 0.05, epsilon: float = 1.0e-12, interval: int = 1) -> None:
        _check_settings(rho, interval)
        self.rho = rho
        self.epsilon = epsilon
        self.interval = interval
        self._wrapped: list[SAMOptimizer] = []

    def match(self, event: Event, state: State) -> bool:
        """Matches around loading, once: what is loaded must find the optimizer that was saved."""
        return event in (Event.BEFORE_LOAD, Event.AFTER_LOAD) and not self._wrapped

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Wraps the optimizers, and makes the scaler of fp16 one that takes closures."""
        self._wrapped = [
            SAMOptimizer(optimizer, self.rho, self.epsilon, self.interval)
            for optimizer in state.optimizers
        ]
        state.optimizers = self._wrapped
        if state.scaler is not None:
            state.scaler = ClosureGradScaler()
        return None

    def state_dict(self) -> dict[str, Any]:
        """Returns how many steps were taken, from which follows when to look around."""
        steps = [optimizer.global_step for optimizer in self._wrapped]
        return {**super().state_dict(), "global_step": steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes it back; older releases did not save it."""
        for optimizer, step in zip(self._wrapped, state.get("global_step", ()), strict=False):
            optimizer.global_step = step


def _check_settings(rho: float, interval: int) -> None:
    if rho < 0:
        raise ValueError(f"Invalid rho={rho}, should be non-negative.")
    if interval < 1:
        raise ValueError(f"interval={interval} must be at least 1.")
