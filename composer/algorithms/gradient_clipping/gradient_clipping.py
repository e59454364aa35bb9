"""Gradient clipping: one total norm over all shards, clamped elements, or adaptive per unit."""

from collections.abc import Iterable

import torch

from composer.core.algorithm import Algorithm
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils.gradients import as_sharded, local_part, total_norm, with_sums_done

CLIPPING_TYPES = ("norm", "value", "adaptive")


class GradientClipping(Algorithm):
    """Clips the gradients of every optimizer step, after all micro-batches are accumulated.

    Sharded parameters are clipped as one process would clip the whole ones: ``norm`` uses the total
    norm over all shards, ``value`` clamps elements.

    Args:
        clipping_type: ``"norm"`` scales all gradients so that their total L2 norm is at most the
            threshold; ``"value"`` clamps each element to plus or minus the threshold;
            ``"adaptive"`` keeps each unit's gradient norm at most threshold times the norm of the
            unit's weights (Brock et al., 2021).
        clipping_threshold: The limit, a positive number.

    Raises:
        ValueError: For an unknown type or a threshold that is not positive.
    """

    def __init__(self, clipping_type: str, clipping_threshold: float) -> None:
        _check_clipping_type(clipping_type)
        if not clipping_threshold > 0:
            raise ValueError(
                f"clipping_threshold={clipping_threshold!r} must be a positive number; leave "
                "GradientClipping out to train without clipping."
            )
        self.clipping_type = clipping_type
        self.clipping_threshold = clipping_threshold
        self.gradient_norm: torch.Tensor | None = None
        """The total norm before the last clipping, if it was by norm."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(clipping_type={self.clipping_type!r},"
            f"clipping_threshold={self.clipping_threshold!r})"
        )

    def match(self, event: Event, state: State) -> bool:
        """Matches after the gradients of a whole batch are there and unscaled."""
        return event == Event.AFTER_TRAIN_BATCH

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Clips the gradients of the model in place."""
        self.gradient_norm = apply_gradient_clipping(
            state.model, self.clipping_type, self.clipping_threshold, state.fsdp_enabled
        )
        return None


def apply_gradient_clipping(
    model: torch.nn.Module | Iterable[torch.Tensor],
    clipping_type: str,
    clipping_threshold: float,
    fsdp_enabled: bool = False,
) -> torch.Tensor | None:
    """Clips the gradients of ``model`` in place; returns their total norm if it clips by norm.

    Args:
        model: A module, or its parameters.
        clipping_type: ``"norm"``, ``"value"`` or ``"adaptive"``; see :class:`GradientClipping`.
        clipping_threshold: The limit.
        fsdp_enabled: Only says what the caller believes: sharded gradients are recognised by
            themselves, so mixed models are right too.

    Raises:
        ValueError: For an unknown type.
    """
    _check_clipping_type(clipping_type)
    parameters = model.parameters() if isinstance(model, torch.nn.Module) else model
    with_grad = [parameter for parameter in parameters if parameter.grad is not None]
    if not with_grad:
        return None
    if clipping_type == "norm":
        return _clip_total_norm(with_grad, clipping_threshold)
    if clipping_type == "value":
        # One by one: sharded gradients and whole ones cannot be in one call.
        torch.nn.utils.clip_grad_value_(with_grad, clipping_threshold, foreach=False)
    else:
        _apply_agc(with_grad, clipping_threshold)
    return None


def _check_clipping_type(clipping_type: str) -> None:
    if clipping_type not in CLIPPING_TYPES:
        raise ValueError(
            f"clipping_type={clipping_type!r} is unknown; use one of {', '.join(CLIPPING_TYPES)}."
        )


def _clip_total_norm(parameters: list[torch.Tensor], max_norm: float) -> torch.Tensor:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if all(as_sharded(gradient) is None for gradient in gradients):
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    norm = total_norm(gradients)
    coefficient = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        local = local_part(gradient)
        local.mul_(coefficient.to(local.device))
    return norm


def _apply_agc(parameters: Iterable[torch.Tensor], clipping_threshold: float) -> None:
    """Clips each unit's gradient to ``clipping_threshold`` times the norm of the unit's weights."""
    for parameter in parameters:
        if parameter.grad is None:
            continue
        coefficient = _get_clipped_gradient_coeff(
            parameter.detach(), parameter.grad.detach(), clipping_threshold
        )
        parameter.grad.detach().mul_(coefficient)


def _get_clipped_gradient_coeff(
    weights: torch.Tensor, grad: torch.Tensor, clipping_threshold: float
) -> torch.Tensor:
    """The factor (at most 1) by which each unit of ``grad`` is to be multiplied."""
    max_norm = _unitwise_norm(weights).mul_(clipping_threshold)
    # 0/0 (a unit without weight and gradient) has nothing to clip.
    return max_norm.div_(_unitwise_norm(grad)).nan_to_num_(nan=1.0).clamp_(max=1.0)


def _unitwise_norm(tensor: torch.Tensor) -> torch.Tensor:
    """The L2 norm of each unit (output row or channel); of the whole tensor if it is a vector."""
    dims = tuple(range(1, tensor.ndim)) if tensor.ndim > 1 else tuple(range(tensor.ndim))
    norm = torch.linalg.vector_norm(tensor, dim=dims or None, keepdim=True)
    sharded = as_sharded(norm)
    return norm if sharded is None else with_sums_done(sharded)
