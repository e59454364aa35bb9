"""Lion that answers to outliers: with a smaller rate, or with a shorter gradient."""

from collections.abc import Iterable
from typing import Any

import torch

from llmfoundry.optim.lion import DecoupledLionW
from llmfoundry.optim.outlier_detection import OutlierDetector

__all__ = ["DecoupledAdaLRLion", "DecoupledClipLion"]


def _whole_norm(tensor: torch.Tensor) -> float:
    """The norm of a tensor over all ranks that hold a part of it."""
    norm = torch.linalg.vector_norm(tensor)
    full = getattr(norm, "full_tensor", None)
    return float(norm if full is None else full())


class DecoupledAdaLRLion(DecoupledLionW):
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
        super().__init__(params, lr, betas, weight_decay)
        self.outlier_threshold = outlier_threshold
        self.timeout = timeout
        self.lr_penalty = lr_penalty
        self.min_scale = min_scale

    def adjust_lr(self, lr: float, lr_penalty: float, num_times: int, min_scale: float) -> float:
        """The rate after ``num_times`` outliers."""
        return lr * max(min_scale, lr_penalty**num_times)

    def _start(self, state: dict[str, Any]) -> None:
        state.update(moment_history=[], outlier_timestamp=[], step=0)

    def _moderate(
        self, group: dict[str, Any], state: dict[str, Any], gradient: torch.Tensor
    ) -> tuple[float, torch.Tensor]:
        norm = _whole_norm(state["exp_avg"].lerp(gradient, 1 - group["betas"][1]))
        tracker = OutlierDetector(self.outlier_threshold, history=state["moment_history"])
        if tracker.insert_observation(norm):
            state["outlier_timestamp"].append(state["step"])
        state["outlier_timestamp"] = [
            when for when in state["outlier_timestamp"] if state["step"] - when <= self.timeout
        ]
        state["step"] += 1
        return self._lr_of(group, state), gradient

    def _lr_of(self, group: dict[str, Any], state: dict[str, Any]) -> float:
        return self.adjust_lr(
            group["lr"], self.lr_penalty, len(state["outlier_timestamp"]), self.min_scale
        )

    def report_per_parameter_metrics(
        self, param: torch.Tensor, name: str, optimizer_metrics: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Adds the norms and the effective learning rate of one parameter."""
        metrics = super().report_per_parameter_metrics(param, name, optimizer_metrics)
        state = self.state.get(param)
        if state:
            group = next(group for group, each, _ in self._trained() if each is param)
            metrics[f"layerwise_lr/{name}"] = torch.tensor(self._lr_of(group, state))
        return metrics


class DecoupledClipLion(DecoupledLionW):
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
        super().__init__(params, lr, betas, weight_decay)
        self.outlier_threshold = outlier_threshold

    def _start(self, state: dict[str, Any]) -> None:
        state.update(grad_history=[], clipped_batches=0)

    def _moderate(
        self, group: dict[str, Any], state: dict[str, Any], gradient: torch.Tensor
    ) -> tuple[float, torch.Tensor]:
        tracker = OutlierDetector(self.outlier_threshold, history=state["grad_history"])
        norm = _whole_norm(gradient)
        if tracker.insert_observation(norm):
            state["clipped_batches"] += 1
            usual = tracker.get_delayed_mva()
            assert usual is not None, "an outlier stands out from something"
            gradient = gradient * (usual * self.outlier_threshold / norm)
        return group["lr"], gradient

    def report_per_parameter_metrics(
        self, param: torch.Tensor, name: str, optimizer_metrics: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Adds the norms of one parameter and how often its gradient was shortened."""
        metrics = super().report_per_parameter_metrics(param, name, optimizer_metrics)
        state = self.state.get(param)
        if state:
            metrics[f"clipped_batches/{name}"] = torch.tensor(float(state["clipped_batches"]))
        return metrics
