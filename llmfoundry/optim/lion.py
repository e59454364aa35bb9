"""Lion, whose steps all have the length of the learning rate, with decoupled weight decay."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

__all__ = ["DecoupledLionW", "decay_and_step", "lion_direction"]

log = logging.getLogger(__name__)

# From here on the decay was probably meant for an optimizer that multiplies it by the rate.
SUSPICIOUS_WEIGHT_DECAY = 1e-3


def lion_direction(momentum: torch.Tensor, gradient: torch.Tensor, beta1: float) -> torch.Tensor:
    """The sign of the momentum as it would be with this gradient."""
    return momentum.lerp(gradient, 1 - beta1).sign_()


def decay_and_step(
    parameter: torch.Tensor,
    direction: torch.Tensor,
    lr: float,
    initial_lr: float,
    weight_decay: float,
) -> None:
    """Shrinks a parameter by its decay, as far as the schedule is, and moves it by ``lr``."""
    if weight_decay != 0:
        share = lr / initial_lr if initial_lr else 1.0
        parameter.mul_(1 - share * weight_decay)
    parameter.add_(direction, alpha=-lr)


def check_lion_settings(lr: float, betas: tuple[float, float], weight_decay: float) -> None:
    """Refuses rates that make no Lion, and remarks on a decay that looks meant for another."""
    if lr <= 0.0:
        raise ValueError(f"Invalid LR: {lr}. LR must be > 0")
    if not all(0.0 <= beta <= 1.0 for beta in betas):
        raise ValueError(f"Invalid beta values: {betas}. All betas must be between 0 and 1.")
    if weight_decay >= SUSPICIOUS_WEIGHT_DECAY:
        log.warning(
            "You are using a high value of weight_decay=%s for a decoupled optimizer, which does "
            "not multiply it by the learning rate. Are you sure you want to do this?",
            weight_decay,
        )


class DecoupledLionW(Optimizer):
    """Lion with weight decay that follows the schedule, not the learning rate.

    A step is ``p *= 1 - (lr / initial_lr) * weight_decay`` and then ``p -= lr * sign(u)``, where
    ``u`` is the momentum as it would be with this gradient.

    Args:
        params: Parameters or groups of them.
        lr: Length of a step; its first value is ``initial_lr``.
        betas: Share of the old momentum in the direction, and in the momentum that is kept.
        weight_decay: Share of a parameter that a step takes off, at the initial rate.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        check_lion_settings(lr, betas, weight_decay)
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group and remembers the learning rate that its decay is measured against."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("initial_lr", group["lr"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Moves the parameters one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, parameter, gradient in self._trained():
            beta1, beta2 = group["betas"]
            state = self.state[parameter]
            if not state:
                state["exp_avg"] = torch.zeros_like(parameter)
                self._start(state)
            lr, gradient = self._moderate(group, state, gradient)
            direction = lion_direction(state["exp_avg"], gradient, beta1)
            decay_and_step(parameter, direction, lr, group["initial_lr"], group["weight_decay"])
            state["exp_avg"].lerp_(gradient, 1 - beta2)
        return loss

    def _trained(self) -> Iterator[tuple[dict[str, Any], torch.Tensor, torch.Tensor]]:
        """Each parameter that has a gradient, with its group before and its gradient behind."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.requires_grad:
                    yield group, parameter, parameter.grad

    def _start(self, state: dict[str, Any]) -> None:
        """Adds what a variant keeps for a parameter."""

    def _moderate(
        self, group: dict[str, Any], state: dict[str, Any], gradient: torch.Tensor
    ) -> tuple[float, torch.Tensor]:
        """The rate and the gradient of this step; variants answer to outliers here."""
        return group["lr"], gradient

    def report_per_parameter_metrics(
        self, param: torch.Tensor, name: str, optimizer_metrics: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Adds the norms of a parameter, its gradient, momentum and next update."""
        state = self.state.get(param)
        if not state or param.grad is None:
            return optimizer_metrics
        group = next(group for group, each, _ in self._trained() if each is param)
        lr, decay = group["lr"], group["weight_decay"]
        direction = lion_direction(state["exp_avg"], param.grad, group["betas"][0])
        share = lr / group["initial_lr"] if group["initial_lr"] else 1.0
        for what, tensor in (
            ("moment", state["exp_avg"]),
            ("param", param.data),
            ("update", direction * lr + param.data * (share * decay)),
            ("grad", param.grad),
        ):
            optimizer_metrics[f"l2_norm/{what}/{name}"] = torch.linalg.vector_norm(tensor)
        return optimizer_metrics
