"""Muon for the hidden matrices of a model and AdamW for everything else, as one optimizer."""

from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from composer.core.sharded_state import placed_as
from composer.optim.decoupled_weight_decay import DecoupledAdamW, _decay_share, _scale
from composer.utils.gradients import as_sharded, local_part

__all__ = ["DecoupledMuon", "hidden_matrices", "orthogonalised"]

# The quintic of https://kellerjordan.github.io/posts/muon/, as torch.optim.Muon has it.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_EPS = 1e-7


def orthogonalised(matrix: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Returns, in bf16, about the orthogonal matrix nearest to ``matrix``, by Newton-Schulz steps.

    Its singular values lie around one, most between 0.7 and 1.2, which is near enough.
    """
    a, b, c = _QUINTIC
    is_tall = matrix.size(0) > matrix.size(1)
    x = matrix.bfloat16()
    x = x.T if is_tall else x
    x = x / x.norm().clamp(min=_EPS)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


def hidden_matrices(model: torch.nn.Module) -> set[torch.nn.Parameter]:
    """Returns the two-dimensional parameters of a model that are neither embeddings nor the head.

    The head is what the model says (``get_output_embeddings``), or else the last linear layer.
    """
    heads = [
        head.weight
        for module in model.modules()
        if (ask := getattr(module, "get_output_embeddings", None)) and (head := ask()) is not None
    ]
    if not heads:
        linear = [m.weight for m in model.modules() if isinstance(m, torch.nn.Linear)]
        heads = linear[-1:]
    embeddings = [m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding)]
    left_out = {id(parameter) for parameter in [*heads, *embeddings]}
    return {p for p in model.parameters() if p.ndim == 2 and id(p) not in left_out}


class DecoupledMuon(DecoupledAdamW):
    """Steps hidden matrices by their orthogonalised momentum, and everything else as AdamW.

    Muon (Jordan et al., https://kellerjordan.github.io/posts/muon/) with updates of the size that
    AdamW's have (Liu et al., arXiv 2502.16982), so that one learning rate serves both. Embeddings,
    the head, norms and biases go to AdamW; see `hidden_matrices`. Decay is that of
    `DecoupledAdamW`. Of sharded matrices the momentum is sharded; each step gathers them one by
    one, and every rank orthogonalises the whole.

    Args:
        params: The model; or parameters or groups of them, with ``model``.
        lr: Learning rate.
        momentum: Share of the old momentum that stays.
        nesterov: Looks one step of the momentum ahead.
        weight_decay: Share of each weight that is taken off per step at the initial learning rate.
        betas: AdamW's decay rates of the first and the second moment.
        eps: Added to AdamW's denominator.
        ns_steps: Newton-Schulz steps.
        cautious_weight_decay: Takes the decay off only where it goes the way of the update
            (arXiv 2510.12402).
        model: The model, by which parameters are told apart; recipes need not give it.

    Raises:
        ValueError: If there is no model, or no hidden matrix.
    """

    takes_model: ClassVar[bool] = True
    """Builders of optimizers hand the model over."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        ns_steps: int = 5,
        *,
        cautious_weight_decay: bool = False,
        model: torch.nn.Module | None = None,
    ) -> None:
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum!r} must be from 0 to below 1.")
        if isinstance(params, torch.nn.Module):
            model, params = params, params.parameters()
        if model is None:
            raise ValueError(
                "DecoupledMuon tells matrices from embeddings by the model: give the model itself "
                "in place of its parameters, or beside them as model=."
            )
        super().__init__(
            list(_split(params, hidden_matrices(model))),
            lr,
            betas,
            eps,
            weight_decay,
            cautious_weight_decay=cautious_weight_decay,
        )
        self.momentum = momentum
        self.nesterov = nesterov
        self.ns_steps = ns_steps

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Adam's own would look for the step count of matrices, which have none.
        torch.optim.Optimizer.__setstate__(self, state)

    def _step_group(
        self, group: dict[str, Any], params: list[torch.Tensor], weight_decay: float
    ) -> None:
        if not group["is_orthogonalised"]:
            super()._step_group(group, params, weight_decay)
            return
        lr = float(group["lr"])
        if weight_decay:
            local = [local_part(p) for p in params]
            _scale(local, 1 - weight_decay * _decay_share(lr, float(group["initial_lr"])))
        for param in params:
            assert param.grad is not None
            state = self.state[param]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(param)
            buffer = state["momentum_buffer"].lerp_(param.grad, 1 - self.momentum)
            update = param.grad.lerp(buffer, self.momentum) if self.nesterov else buffer
            sharded = as_sharded(update)
            whole = update if sharded is None else sharded.bfloat16().full_tensor()
            step = placed_as(orthogonalised(whole, self.ns_steps), param)
            size = 0.2 * max(param.shape) ** 0.5  # the root mean square of AdamW's update
            local_part(param).add_(local_part(step), alpha=-lr * size)

    def report_per_parameter_metrics(
        self, param: torch.Tensor, name: str, optimizer_metrics: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Adds the norms of one parameter; of a matrix without that of its update."""
        buffer = self.state.get(param, {}).get("momentum_buffer")
        if buffer is None:
            return super().report_per_parameter_metrics(param, name, optimizer_metrics)
        for metric, tensor in (("moment", buffer), ("param", param.data), ("grad", param.grad)):
            assert tensor is not None
            optimizer_metrics[f"l2_norm/{metric}/{name}"] = torch.linalg.vector_norm(tensor)
        return optimizer_metrics


def _split(params: Iterable[Any], matrices: set[torch.nn.Parameter]) -> Iterable[dict[str, Any]]:
    """Yields of each group the part for Muon and the part for AdamW."""
    given = list(params)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    found = 0
    for group in groups:
        members = list(group["params"])
        for is_orthogonalised in (True, False):
            part = [p for p in members if (p in matrices) == is_orthogonalised]
            found += len(part) * is_orthogonalised
            if part:
                yield {**group, "params": part, "is_orthogonalised": is_orthogonalised}
    if not found:
        raise ValueError(
            "The model has no hidden matrix among the parameters given (matrices of two dimensions "
            "that are neither embeddings nor the head), so nothing would be Muon's; use AdamW."
        )
