"""AdEMAMix: Adam with a second, much slower moving average of the gradient."""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from composer.optim.decoupled_weight_decay import (
    _decay_share,
    _run_closure,
    _scale,
    _trained,
    decay_where_it_agrees,
)
from composer.utils.gradients import local_part

ops: Any = torch
"""torch's operations on lists of tensors have no types."""

__all__ = ["DecoupledAdEMAMix"]


class DecoupledAdEMAMix(Optimizer):
    """AdamW whose update adds ``alpha`` times a slow average of gradients (arXiv 2409.03137).

    Decay is that of `DecoupledAdamW`.

    Args:
        params: Parameters, or parameter groups.
        lr: Learning rate.
        betas: Decay rates of the fast average, of the squares, and of the slow average.
        alpha: Weight of the slow average.
        warmup_steps: Steps over which ``alpha`` grows from 0 and the slow average's decay rate from
            that of the fast one; the paper takes the length of training. 0 for none.
        eps: Added to the denominator.
        weight_decay: Share of each weight that is taken off per step at the initial learning rate.
        cautious_weight_decay: Takes the decay off only where it goes the way of the update
            (arXiv 2510.12402).
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float, float] = (0.9, 0.999, 0.9999),
        alpha: float = 8.0,
        warmup_steps: int = 0,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        cautious_weight_decay: bool = False,
    ) -> None:
        if len(betas) != 3 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={betas!r} must be three numbers from 0 to below 1.")
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps={warmup_steps!r} must be 0 (none) or positive.")
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "alpha": alpha,
            "warmup_steps": warmup_steps,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)
        self.cautious_weight_decay = cautious_weight_decay

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group and remembers the learning rate that its decay is measured against."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("initial_lr", group["lr"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step and returns what the closure returned, if there is one."""
        loss = _run_closure(closure)
        for group in self.param_groups:
            # Usually all are at one step; not so one that had no gradient now and then.
            by_step: dict[int, list[torch.Tensor]] = defaultdict(list)
            for param in _trained(group, "DecoupledAdEMAMix"):
                by_step[self._next_step(param)].append(param)
            for step, params in by_step.items():
                self._update(group, step, params)
        return loss

    def _next_step(self, param: torch.Tensor) -> int:
        state = self.state[param]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in ("exp_avg", "exp_avg_sq", "exp_avg_slow"):
                state[name] = torch.zeros_like(param, memory_format=torch.preserve_format)
        state["step"] += 1
        return int(state["step"])  # on the host

    def _update(self, group: dict[str, Any], step: int, params: list[torch.Tensor]) -> None:
        weights = [local_part(param) for param in params]
        gradients = [local_part(param.grad) for param in params if param.grad is not None]
        fast, squares, slow = (
            [local_part(self.state[param][name]) for param in params]
            for name in ("exp_avg", "exp_avg_sq", "exp_avg_slow")
        )
        beta1, beta2, _ = group["betas"]
        alpha, beta3 = slow_settings(step, group["warmup_steps"], group["alpha"], group["betas"])
        ops._foreach_lerp_(fast, gradients, 1 - beta1)
        ops._foreach_lerp_(slow, gradients, 1 - beta3)
        ops._foreach_mul_(squares, beta2)
        ops._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        denominators = ops._foreach_div(squares, 1 - beta2**step)
        ops._foreach_sqrt_(denominators)
        ops._foreach_add_(denominators, group["eps"])
        updates = ops._foreach_div(fast, 1 - beta1**step)
        ops._foreach_add_(updates, slow, alpha=alpha)
        ops._foreach_div_(updates, denominators)
        lr = float(group["lr"])
        decay = group["weight_decay"] * _decay_share(lr, float(group["initial_lr"]))
        is_cautious = bool(decay) and self.cautious_weight_decay
        before = [weight.clone() for weight in weights] if is_cautious else None
        if decay and before is None:
            _scale(weights, 1 - decay)
        ops._foreach_add_(weights, updates, alpha=-lr)
        if before is not None:
            decay_where_it_agrees(weights, before, decay)


def slow_settings(
    step: int, warmup_steps: int, alpha: float, betas: tuple[float, float, float]
) -> tuple[float, float]:
    """Returns the weight and the decay rate of the slow average at a step.

    The half-life of the average grows in a straight line, not its decay rate.
    """
    beta1, _, beta3 = betas
    if step >= warmup_steps:
        return alpha, beta3
    done = step / warmup_steps
    if beta1 == 0 or beta3 == 0:
        return done * alpha, beta3
    start, end = math.log(beta1), math.log(beta3)
    rate = math.exp(start * end / ((1 - done) * end + done * start))
    return done * alpha, min(rate, beta3)
