"""Lion that answers to outliers: with a smaller rate, or with a shorter gradient."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from llmfoundry.optim.lion import (
    check_lion_settings,
    decay_and_step,
    lion_direction,
    report_norms,
)
from llmfoundry.optim.outlier_detection import OutlierDetector

__all__ = ["DecoupledAdaLRLion", "DecoupledClipLion"]


def _whole_norm(tensor: torch.Tensor) -> float:
    """The norm of a tensor over all ranks that hold a part of it."""
    norm = torch.linalg.vector_norm(tensor)
    full = getattr(norm, "full_tensor", None)
    return float(norm if full is None else full())


class _OutlierLion(Optimizer):
    """What the two have in common: parameters in their groups, and norms to report."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group and remembers the learning rate that its decay is measured against."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("initial_lr", group["lr"])

    def _trained(self) -> Iterable[tuple[dict[str, Any], torch.Tensor, torch.Tensor]]:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.requires_grad:
                    yield group, parameter, parameter.grad

    def report_per_parameter_metrics(
        self, param: torch.Tensor, name: str, optimizer_metrics: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Adds the norms of one parameter for the optimizer monitor."""
        return report_norms(self, param, name, optimizer_metrics)


class DecoupledAdaLRLion(_OutlierLion):
    """Lion that lowers a parameter's rate for a while after its momentum stood out.

    Args:
        params: Parameters or groups of them.
        lr: Length of a step; its first value is ``initial_lr``.
        betas: Share of the old momentum in the direction, and in the momentum that is kept.
        weight_decay: Share of a parameter that a step takes off, at the initial rate.
        outlier_threshold: How many times its usual norm the momentum must have to stand out.
        timeout: Steps for which an outlier counts.
        lr_penalty: Factor on the rate for each outlier that counts.
        min_scale: Smallest factor.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        outlier_threshold: float = 10.0,
        timeout: int = 100,
        lr_penalty: float = 0.707,
        min_scale: float = 1e-4,
    ) -> None:
        check_lion_settings(lr, betas, weight_decay)
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.outlier_threshold = outlier_threshold
        self.timeout = timeout
        self.lr_penalty = lr_penalty
        self.min_scale = min_scale

    def adjust_lr(self, lr: float, lr_penalty: float, num_times: int, min_scale: float) -> float:
        """The rate after ``num_times`` outliers."""
        return lr * max(min_scale, lr_penalty**num_times)

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
                state["moment_history"] = []
                state["outlier_timestamp"] = []
                state["step"] = 0
            norm = _whole_norm(state["exp_avg"].lerp(gradient, 1 - beta2))
            tracker = OutlierDetector(self.outlier_threshold, history=state["moment_history"])
            if tracker.insert_observation(norm):
                state["outlier_timestamp"].append(state["step"])
            state["outlier_timestamp"] = [
                when for when in state["outlier_timestamp"] if state["step"] - when <= self.timeout
            ]
            lr = self._lr_of(group, state)
            direction = lion_direction(state["exp_avg"], gradient, beta1)
            decay_and_step(parameter, direction, lr, group["initial_lr"], group["weight_decay"])
            state["exp_avg"].lerp_(gradient, 1 - beta2)
            state["step"] += 1
        return loss

    def _lr_of(self, group: dict[str, Any], state: dict[str, Any]) -> float:
        return self.adjust_lr(
            group["lr"], self.lr_penalty, len(state["outlier_timestamp"]), self.min_scale
        )

    def report_per_parameter_metrics(
        self, param: torch.Tensor, name: str, optimizer_metrics: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Adds the norms and the effective learning rate of one parameter."""
        metrics = report_norms(self, param, name, optimizer_metrics)
        state = self.state.get(param)
        if state:
            group = next(group for group, each, _ in self._trained() if each is param)
            metrics[f"layerwise_lr/{name}"] = torch.tensor(self._lr_of(group, state))
        return metrics


class DecoupledClipLion(_OutlierLion):
    """Lion that shortens a gradient that stands out to the most that is usual.

    Args:
        params: Parameters or groups of them.
        lr: Length of a step; its first value is ``initial_lr``.
        betas: Share of the old momentum in the direction, and in the momentum that is kept.
        weight_decay: Share of a parameter that a step takes off, at the initial rate.
        outlier_threshold: How many times its usual norm a gradient must have to stand out.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        outlier_threshold: float = 5.0,
    ) -> None:
        check_lion_settings(lr, betas, weight_decay)
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.outlier_threshold = outlier_threshold

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
                state["grad_history"] = []
                state["clipped_batches"] = 0
            usual = self._usual(gradient, state)
            direction = lion_direction(state["exp_avg"], usual, beta1)
            decay_and_step(
                parameter, direction, group["lr"], group["initial_lr"], group["weight_decay"]
            )
            state["exp_avg"].lerp_(usual, 1 - beta2)
        return loss

    def _usual(self, gradient: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
        tracker = OutlierDetector(self.outlier_threshold, history=state["grad_history"])
        norm = _whole_norm(gradient)
        if not tracker.insert_observation(norm):
            return gradient
        state["clipped_batches"] += 1
        usual = tracker.get_delayed_mva()
        assert usual is not None, "an outlier stands out from something"
        return gradient * (usual * self.outlier_threshold / norm)

    def report_per_parameter_metrics(
        self, param: torch.Tensor, name: str, optimizer_metrics: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Adds the norms of one parameter and how often its gradient was shortened."""
        metrics = report_norms(self, param, name, optimizer_metrics)
        state = self.state.get(param)
        if state:
            metrics[f"clipped_batches/{name}"] = torch.tensor(float(state["clipped_batches"]))
        return metrics
