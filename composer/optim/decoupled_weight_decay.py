"""SGD and AdamW whose weight decay follows the schedule but not the learning rate itself.

Both optimizers multiply each weight by ``1 - weight_decay * (lr / initial_lr)`` on every step. The
update runs in torch's own fused kernels wherever they exist.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch.optim import SGD, AdamW
from torch.optim.adamw import adamw as torch_adamw
from torch.optim.sgd import sgd as torch_sgd

from composer.utils import dist
from composer.utils.gradients import local_part

log = logging.getLogger(__name__)

__all__ = ["DecoupledAdamW", "DecoupledSGDW"]

# From here on a decay is probably meant for torch's convention, where it is multiplied by the
# learning rate.
_SUSPICIOUS_WEIGHT_DECAY = 1e-3
_FUSED_DEVICES = frozenset({"cuda", "cpu"})


def _warn_of_high_weight_decay(optimizer: str, weight_decay: float) -> None:
    if weight_decay >= _SUSPICIOUS_WEIGHT_DECAY:
        log.warning(
            "You are using a high value of weight_decay=%s for the %s optimizer, which is not "
            "multiplied by the learning rate: the weights will be multiplied by %s on every step "
            "at the full learning rate.",
            weight_decay,
            optimizer,
            1.0 - weight_decay,
        )


def _decay_share(lr: float, initial_lr: float) -> float:
    """Returns the part of the weight decay that is in force: 1 at the initial learning rate."""
    return lr / initial_lr if initial_lr else 1.0


def _scale(params: list[torch.Tensor], factor: float) -> None:
    # Torch offers its multi-tensor operations, which save a kernel launch a parameter, only so.
    torch._foreach_mul_(params, factor)  # pyright: ignore[reportPrivateImportUsage]


def _prefer_fused(params: Sequence[torch.Tensor], fused: bool | None, foreach: bool | None) -> bool:
    """Says whether the fused kernel runs: as asked, and unasked wherever it can."""
    if fused is not None or foreach is not None:
        return bool(fused)
    return all(p.device.type in _FUSED_DEVICES and p.is_floating_point() for p in params)


def _of_one_kind(params: list[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    """Splits parameters such that sharded and plain ones never share a multi-tensor call."""
    if all(type(p) is torch.nn.Parameter for p in params):
        return [params] if params else []
    kinds: dict[tuple[type, Any], list[torch.Tensor]] = {}
    for p in params:
        kinds.setdefault((type(p), getattr(p, "device_mesh", None)), []).append(p)
    return kinds.values()


@torch.no_grad()
def decay_where_it_agrees(
    params: list[torch.Tensor], before: list[torch.Tensor], decay: float
) -> None:
    """Takes ``decay`` times the old weights off where the update moved them towards zero.

    Args:
        params: The updated weights; of shards, this rank's parts.
        before: The weights before the update.
        decay: The share to take off.
    """
    for param, old in zip(params, before, strict=True):
        # 1 where the signs agree or the update is nothing, else 0; comparisons are slow on a CPU.
        agrees = (old - param).sign_().mul_(old.sign()).add_(1).clamp_(max=1)
        param.addcmul_(old, agrees, value=-decay)


def _run_closure(closure: Callable[[], Any] | None) -> Any:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _trained(group: dict[str, Any], optimizer: str) -> list[torch.Tensor]:
    params = [p for p in group["params"] if p.grad is not None]
    if any(p.grad.is_sparse for p in params):
        raise RuntimeError(f"{optimizer} does not support sparse gradients; use a dense embedding.")
    return params


class DecoupledSGDW(SGD):
    """Stochastic gradient descent with weight decay that is decoupled from the learning rate.

    Each step multiplies the weights by ``1 - weight_decay * (lr / initial_lr)``, where
    ``initial_lr`` is the rate that the optimizer was built with: a decay of 1e-5 means the same at
    every learning rate. Changing a group's ``lr`` by hand changes its decay with it.

    Args:
        params: Parameters, or parameter groups.
        lr: Learning rate.
        momentum: Momentum factor.
        dampening: Dampening for momentum.
        weight_decay: Share of each weight that is taken off per step at the initial learning rate.
        nesterov: Uses Nesterov momentum.
        foreach: Forces torch's multi-tensor form on or off; by default the fastest form that fits
            is taken.
        fused: Forces torch's fused kernel on or off; by default the fastest form that fits is
            taken.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        _warn_of_high_weight_decay("DecoupledSGDW", weight_decay)
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, foreach=foreach)
        _set_fused(self, fused)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group and remembers the learning rate that its decay is measured against."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("initial_lr", group["lr"])

    @staticmethod
    def sgdw(
        params: list[torch.Tensor],
        d_p_list: list[torch.Tensor],
        momentum_buffer_list: list[torch.Tensor | None],
        *,
        weight_decay: float,
        momentum: float,
        lr: float,
        initial_lr: float,
        dampening: float,
        nesterov: bool,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        """Updates parameters and momentum buffers in place; a missing buffer joins the list."""
        if weight_decay != 0:
            _scale(params, 1 - weight_decay * _decay_share(lr, initial_lr))
        # The fused kernel wants either all buffers or none; a parameter that joins later has none
        # yet.
        joins_late = any(b is None for b in momentum_buffer_list) and any(
            b is not None for b in momentum_buffer_list
        )
        torch_sgd(
            params,
            d_p_list,
            momentum_buffer_list,
            weight_decay=0.0,
            momentum=momentum,
            lr=lr,
            dampening=dampening,
            nesterov=nesterov,
            maximize=False,
            foreach=foreach,
            fused=(not joins_late and _prefer_fused(params, fused, foreach)) or None,
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step and returns what the closure returned, if there is one."""
        loss = _run_closure(closure)
        for group in self.param_groups:
            for params in _of_one_kind(_trained(group, "DecoupledSGDW")):
                buffers = [self.state[p].get("momentum_buffer") for p in params]
                self.sgdw(
                    params,
                    [p.grad for p in params if p.grad is not None],
                    buffers,
                    weight_decay=group["weight_decay"],
                    momentum=group["momentum"],
                    lr=group["lr"],
                    initial_lr=group["initial_lr"],
                    dampening=group["dampening"],
                    nesterov=group["nesterov"],
                    foreach=group.get("foreach"),
                    fused=group.get("fused"),
                )
                if group["momentum"] != 0:
                    for p, buffer in zip(params, buffers, strict=True):
                        self.state[p]["momentum_buffer"] = buffer
        return loss


class DecoupledAdamW(AdamW):
    """Adam with weight decay that is decoupled from the learning rate.

    Each step multiplies the weights by ``1 - weight_decay * (lr / initial_lr)``, where
    ``initial_lr`` is the rate that the optimizer was built with. Torch's ``AdamW`` multiplies by
    ``1 - weight_decay * lr``; a decay of 0.1 there is 0.1 * lr here.

    Args:
        params: Parameters, or parameter groups.
        lr: Learning rate.
        betas: Decay rates of the first and the second moment.
        eps: Added to the denominator.
        weight_decay: Share of each weight that is taken off per step at the initial learning rate.
        amsgrad: Divides by the largest second moment seen so far.
        foreach: Forces torch's multi-tensor form on or off; by default the fastest form that fits
            is taken.
        fused: Forces torch's fused kernel on or off; by default the fastest form that fits is
            taken.
        cautious_weight_decay: Takes the decay off only where it goes the way of the update
            (arXiv 2510.12402). Costs a copy of the weights while a step lasts.
    """

    metric_functions: ClassVar[dict[str, Callable[..., torch.Tensor]]] = {
        "l2_norm/moment": lambda param, optim_state, step_tensor: torch.linalg.vector_norm(
            optim_state["exp_avg"]
        ),
        "l2_norm/param": lambda param, optim_state, step_tensor: torch.linalg.vector_norm(
            param.data
        ),
        "l2_norm/update": lambda param, optim_state, step_tensor: torch.linalg.vector_norm(
            step_tensor
        ),
        "l2_norm/grad": lambda param, optim_state, step_tensor: torch.linalg.vector_norm(
            param.grad
        ),
    }

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 1e-5,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        fused: bool | None = None,
        cautious_weight_decay: bool = False,
    ) -> None:
        _warn_of_high_weight_decay(type(self).__name__, weight_decay)
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach)
        _set_fused(self, fused)
        self.amsgrad = amsgrad
        self.cautious_weight_decay = cautious_weight_decay

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group and remembers the learning rate that its decay is measured against."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        group.setdefault("initial_lr", group["lr"])

    @staticmethod
    def adamw(
        params: list[torch.Tensor],
        grads: list[torch.Tensor],
        exp_avgs: list[torch.Tensor],
        exp_avg_sqs: list[torch.Tensor],
        max_exp_avg_sqs: list[torch.Tensor],
        state_steps: list[torch.Tensor],
        *,
        amsgrad: bool,
        beta1: float,
        beta2: float,
        lr: float,
        initial_lr: float,
        weight_decay: float,
        eps: float,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        """Updates the parameters, the moments and the step counters in place."""
        # Torch's kernels take the decay in torch's convention and multiply it by the learning rate:
        # handing them weight_decay / initial_lr makes exactly our product without another pass over
        # the weights.
        if initial_lr:
            torch_weight_decay = weight_decay / float(initial_lr)
        else:
            torch_weight_decay = 0.0
            if weight_decay != 0:
                _scale(params, 1 - weight_decay)
        fused = _prefer_fused(params, fused, foreach)
        torch_adamw(
            params,
            grads,
            exp_avgs,
            exp_avg_sqs,
            max_exp_avg_sqs,
            state_steps,
            # Step counters live beside their parameter; reading them back to the CPU would stall a
            # GPU.
            capturable=not fused and state_steps[0].device.type == "cuda",
            foreach=foreach,
            fused=fused or None,
            amsgrad=amsgrad,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            weight_decay=torch_weight_decay,
            eps=eps,
            maximize=False,
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step and returns what the closure returned, if there is one."""
        loss = _run_closure(closure)
        for group in self.param_groups:
            for params in _of_one_kind(_trained(group, type(self).__name__)):
                decay = group["weight_decay"]
                if not (self.cautious_weight_decay and decay):
                    self._step_group(group, params, decay)
                    continue
                before = [local_part(p).clone() for p in params]
                self._step_group(group, params, 0.0)
                share = _decay_share(float(group["lr"]), float(group["initial_lr"]))
                decay_where_it_agrees([local_part(p) for p in params], before, decay * share)
        return loss

    def _step_group(
        self, group: dict[str, Any], params: list[torch.Tensor], weight_decay: float
    ) -> None:
        """Updates parameters of one kind by their gradients."""
        beta1, beta2 = group["betas"]
        amsgrad = group["amsgrad"]
        states = [self._ready_state(p, amsgrad) for p in params]
        self.adamw(
            params,
            [p.grad for p in params if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [state["max_exp_avg_sq"] for state in states] if amsgrad else [],
            [state["step"] for state in states],
            amsgrad=amsgrad,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            initial_lr=group["initial_lr"],
            weight_decay=weight_decay,
            eps=group["eps"],
            foreach=group.get("foreach"),
            fused=group.get("fused"),
        )

    def _ready_state(self, p: torch.Tensor, amsgrad: bool) -> dict[str, Any]:
        state = self.state[p]
        if "exp_avg" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        if amsgrad and "max_exp_avg_sq" not in state:
            state["max_exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        if state["step"].device != p.device:  # a checkpoint was read on the CPU
            state["step"] = state["step"].to(p.device)
        return state

    def report_per_parameter_metrics(
        self, param: torch.Tensor, name: str, optimizer_metrics: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Adds ``<metric>/<name>`` for each metric function, after a step, while gradients exist.

        The update norm is that of the step that would be taken now with these moments and this
        learning rate.
        """
        if param not in self.state or not self.state[param]:
            return optimizer_metrics
        group = next(g for g in self.param_groups if any(p is param for p in g["params"]))
        state = self.state[param]
        beta1, beta2 = group["betas"]
        step = float(state["step"])
        second_moment = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
        denominator = second_moment.sqrt().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
        lr = float(group["lr"])
        update = state["exp_avg"].div(denominator).mul_(lr / (1 - beta1**step))
        decay = group["weight_decay"] * _decay_share(lr, float(group["initial_lr"]))
        update.sub_(param.detach(), alpha=decay)
        for metric, function in self.metric_functions.items():
            optimizer_metrics[f"{metric}/{name}"] = function(param, state, update)
        return optimizer_metrics

    def pre_reduce_metrics(
        self, optimizer_metrics: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Squares the norms of this rank's shards, so that their sum over ranks has a meaning."""
        # All ranks reduce in the same order, whatever the order in which they met the parameters.
        return {
            name: optimizer_metrics[name] ** 2
            if name.startswith("l2_norm")
            else optimizer_metrics[name]
            for name in sorted(optimizer_metrics, key=_shared_order)
        }

    def dist_reduce_metrics(
        self, optimizer_metrics: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Sums what ``pre_reduce_metrics`` made over the ranks and takes the roots of the norms."""
        for name, value in optimizer_metrics.items():
            dist.all_reduce(value, reduce_operation="SUM")
            if name.startswith("l2_norm"):
                optimizer_metrics[name] = torch.sqrt(value)
        return optimizer_metrics


def _shared_order(metric_name: str) -> tuple[bool, str]:
    """Orders metric names alike on all ranks, gradients first."""
    return ("grad" not in metric_name, metric_name)


def _set_fused(optimizer: torch.optim.Optimizer, fused: bool | None) -> None:
    """Writes the wish for the fused kernel into the groups.

    Torch's constructors would refuse parameters that are still on the meta device, and would let
    the gradient scaler skip its own unscaling; here the kernel is chosen when a step runs.
    """
    optimizer.defaults["fused"] = fused
    for group in optimizer.param_groups:
        group["fused"] = fused
