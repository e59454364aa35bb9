"""Schedule-free AdamW: averages the weights while it trains, in place of lowering the rate."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from composer.optim.decoupled_weight_decay import _decay_share, _run_closure, _trained
from composer.utils.gradients import local_part

ops: Any = torch
"""torch's operations on lists of tensors have no types."""

__all__ = ["ScheduleFreeAdamW"]


class ScheduleFreeAdamW(Optimizer):
    """AdamW that needs neither a decay of the learning rate nor the length of training.

    The weights in training lie between a sequence that steps and its average; the average is the
    model (Defazio et al., arXiv 2405.15682). The Trainer has it evaluated and saved; a program of
    its own calls `eval` before either, and `train` before it goes on. Use a constant learning rate
    after a warm-up.

    Args:
        params: Parameters, or parameter groups.
        lr: Learning rate.
        betas: How near to the average the weights in training lie, and the decay rate of the
            second moment.
        eps: Added to the denominator.
        weight_decay: Share of each weight that is taken off per step at the initial learning rate.
    """

    evaluates_average = True
    """The Trainer puts the average in place with `eval`, and takes it out with `train`."""

    def __init__(
        self,
        params: Any,
        lr: float = 2.5e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not (0 < betas[0] < 1 and 0 <= betas[1] < 1):
            raise ValueError(f"betas={betas!r} must be below 1, and the first of them above 0.")
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "is_training": True,
            "weight_sum": 0.0,
            "steps": 0,
        }
        super().__init__(params, defaults)
        self._held: dict[torch.Tensor, torch.Tensor] = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group and remembers the learning rate that its decay is measured against."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("initial_lr", group["lr"])

    @torch.no_grad()
    def eval(self) -> None:
        """Puts the average into the parameters, if it is not there."""
        for group, param, stepped in self._changed(is_training=False):
            # Kept, because the way back is exact only up to rounding.
            self._held[param] = local_part(param).clone()
            local_part(param).lerp_(stepped, 1 - 1 / group["betas"][0])

    @torch.no_grad()
    def train(self) -> None:
        """Puts the weights in training back, if they are not there."""
        for group, param, stepped in self._changed(is_training=True):
            held = self._held.pop(param, None)
            if held is None:
                local_part(param).lerp_(stepped, 1 - group["betas"][0])
            else:
                local_part(param).copy_(held)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back a state, which says which weights are in the parameters."""
        self._held.clear()
        super().load_state_dict(state_dict)

    def _changed(self, is_training: bool) -> Any:
        for group in self.param_groups:
            if group["is_training"] == is_training:
                continue
            group["is_training"] = is_training
            for param in group["params"]:
                if "stepped" in self.state.get(param, {}):
                    yield group, param, local_part(self.state[param]["stepped"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step and returns what the closure returned, if there is one.

        Raises:
            RuntimeError: If the parameters hold the average.
        """
        loss = _run_closure(closure)
        for group in self.param_groups:
            if not group["is_training"]:
                raise RuntimeError(
                    "ScheduleFreeAdamW holds the average, which gradients are not of: call "
                    "optimizer.train() before training goes on."
                )
            group["steps"] += 1
            group["weight_sum"] += float(group["lr"]) ** 2
            if params := list(_trained(group, "ScheduleFreeAdamW")):
                self._update(group, params)
        return loss

    def _update(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        for param in params:
            if not self.state[param]:
                stepped = param.detach().clone(memory_format=torch.preserve_format)
                squares = torch.zeros_like(param, memory_format=torch.preserve_format)
                self.state[param].update(stepped=stepped, exp_avg_sq=squares)
        weights = [local_part(param) for param in params]
        gradients = [local_part(param.grad) for param in params if param.grad is not None]
        stepped, squares = (
            [local_part(self.state[param][name]) for param in params]
            for name in ("stepped", "exp_avg_sq")
        )
        beta1, beta2 = group["betas"]
        lr = float(group["lr"])
        ops._foreach_mul_(squares, beta2)
        ops._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        denominators = ops._foreach_div(squares, 1 - beta2 ** group["steps"])
        ops._foreach_sqrt_(denominators)
        ops._foreach_add_(denominators, group["eps"])
        moves = ops._foreach_div(gradients, denominators)
        ops._foreach_mul_(moves, lr)
        decay = group["weight_decay"] * _decay_share(lr, float(group["initial_lr"]))
        ops._foreach_add_(moves, weights, alpha=decay)
        # How much of the average the newest of the sequence is: by the squares of their rates.
        share = lr**2 / group["weight_sum"] if group["weight_sum"] else 0.0
        # The weights are (1 - beta1) z + beta1 x. With x taken out of these, the step of x and z
        # becomes one of the weights and z.
        ops._foreach_lerp_(weights, stepped, share)
        ops._foreach_add_(weights, moves, alpha=beta1 * (1 - share) - 1)
        ops._foreach_sub_(stepped, moves)
