"""Cross-entropy of a language model's head, without the logits of all tokens at once.

Legend: N tokens, C tokens of a chunk, E model width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["chunked_cross_entropy"]

CHUNK_BYTES = 2**27
"""Logits of a chunk, in the dtype of the products: enough for them to run at full speed."""
PIECE_ELEMENTS = {"cpu": 2**20, "cuda": 2**25}
"""Logits that are fp32 at a time: on a CPU what a cache holds, elsewhere what a kernel is worth."""


def chunked_cross_entropy(
    hidden_NE: torch.Tensor,
    weight_VE: torch.Tensor,
    target_N: torch.Tensor,
    ignore_index: int = -100,
    logit_scale: float | None = None,
    softcap: float | None = None,
    chunk_size: int | None = None,
    z_loss: float = 0.0,
) -> torch.Tensor:
    """Returns the summed cross-entropy of ``hidden @ weight.T`` against ``target``.

    Equal to computing logits, scaling, capping and ``F.cross_entropy(reduction="sum")``, but holds
    the logits of one chunk. Gradients are made together with the loss, chunk by chunk, so the
    backward pass only scales them; it cannot be differentiated again.

    Args:
        hidden_NE: What the head is applied to.
        weight_VE: The head's weight; autocast's dtype is used for the products.
        target_N: The right tokens.
        ignore_index: Targets with this value count nothing.
        logit_scale: What logits are multiplied by.
        softcap: Logits become ``c * tanh(logit / c)``.
        chunk_size: Tokens at a time; by default as many as make 128 MiB of logits.
        z_loss: Adds this times the square of each target's log normaliser (PaLM, arXiv 2204.02311).
    """
    dtype = hidden_NE.dtype
    if torch.is_autocast_enabled(hidden_NE.device.type):
        dtype = torch.get_autocast_dtype(hidden_NE.device.type)
    chunk_size = chunk_size or max(1, CHUNK_BYTES // (weight_VE.size(0) * dtype.itemsize))
    return _ChunkedCrossEntropy.apply(
        hidden_NE, weight_VE, target_N, dtype,
        ignore_index, logit_scale, softcap, z_loss, chunk_size,
    )  # fmt: skip


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The loss and, at once, its gradients for a loss whose own gradient is one."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NE: torch.Tensor,
        weight_VE: torch.Tensor,
        target_N: torch.Tensor,
        dtype: torch.dtype,
        ignore_index: int,
        logit_scale: float | None,
        softcap: float | None,
        z_loss: float,
        chunk_size: int,
    ) -> torch.Tensor:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        with torch.autocast(hidden_NE.device.type, enabled=False):
            cast_VE = weight_VE.to(dtype)
            loss = torch.zeros((), dtype=torch.float32, device=hidden_NE.device)
            grad_NE = torch.empty_like(hidden_NE) if wants_hidden else None
            grad_VE = None
            for start in range(0, max(1, hidden_NE.size(0)), chunk_size):
                rows = slice(start, start + chunk_size)
                hidden_CE = hidden_NE[rows].to(dtype)
                logits_CV = F.linear(hidden_CE, cast_VE)
                loss += _loss_to_gradient_(
                    logits_CV, target_N[rows], ignore_index, logit_scale, softcap, z_loss,
                    wants_gradient=wants_hidden or wants_weight,
                )  # fmt: skip
                if grad_NE is not None:
                    grad_NE[rows] = logits_CV @ cast_VE
                if wants_weight:
                    grad_VE = _accumulate(grad_VE, logits_CV, hidden_CE)
        if grad_VE is not None and grad_VE.dtype.itemsize > weight_VE.dtype.itemsize:
            grad_VE = grad_VE.to(weight_VE.dtype)
        ctx.weight_dtype = weight_VE.dtype
        ctx.save_for_backward(grad_NE, grad_VE)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator's doing
        ctx: Any, *grad_outputs: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        (grad_output,) = grad_outputs
        grad_NE, grad_VE = ctx.saved_tensors
        grad_NE = None if grad_NE is None else grad_NE * grad_output
        if grad_VE is not None:
            grad_VE = grad_VE.to(ctx.weight_dtype).mul_(grad_output)
        return grad_NE, grad_VE, *[None] * 7


def _accumulate(
    grad_VE: torch.Tensor | None, grad_CV: torch.Tensor, hidden_CE: torch.Tensor
) -> torch.Tensor:
    """Returns the weight's gradient with a chunk's added: in fp32, once there are two."""
    if grad_VE is None:
        return grad_CV.T @ hidden_CE
    if grad_CV.dtype == torch.float32:
        return grad_VE.addmm_(grad_CV.T, hidden_CE)
    return grad_VE.float().add_(grad_CV.T @ hidden_CE)


def _loss_to_gradient_(
    logits_CV: torch.Tensor,
    target_C: torch.Tensor,
    ignore_index: int,
    logit_scale: float | None,
    softcap: float | None,
    z_loss: float,
    wants_gradient: bool,
) -> torch.Tensor:
    """Returns a chunk's summed loss, and puts the gradient to its logits in their place."""
    elements = PIECE_ELEMENTS.get(logits_CV.device.type, PIECE_ELEMENTS["cuda"])
    n_rows = max(1, elements // logits_CV.size(1))
    if torch.compiler.is_compiling():  # which would unroll the loop, and needs none
        n_rows = max(1, logits_CV.size(0))
    loss = torch.zeros((), dtype=torch.float32, device=logits_CV.device)
    for rows_CV, target in zip(logits_CV.split(n_rows), target_C.split(n_rows), strict=True):
        loss += _piece_to_gradient_(
            rows_CV, target, ignore_index, logit_scale, softcap, z_loss, wants_gradient
        )
    return loss


def _piece_to_gradient_(
    rows_CV: torch.Tensor,
    target_C: torch.Tensor,
    ignore_index: int,
    logit_scale: float | None,
    softcap: float | None,
    z_loss: float,
    wants_gradient: bool,
) -> torch.Tensor:
    """Does so for as many rows as are computed at once."""
    logits_CV = rows_CV.float()
    if logit_scale is not None:
        logits_CV.mul_(logit_scale)
    if softcap is not None:
        logits_CV.div_(softcap).tanh_().mul_(softcap)
    slope_CV = None
    if softcap is not None and wants_gradient:
        slope_CV = 1 - (logits_CV / softcap).square_()
    is_target_C1 = (target_C != ignore_index)[:, None]
    index_C1 = target_C[:, None].masked_fill(~is_target_C1, 0)
    chosen_C1, top_C1 = logits_CV.gather(1, index_C1), logits_CV.amax(dim=-1, keepdim=True)
    # One exponential serves the norm and the gradient, in the logits' own memory.
    grad_CV = logits_CV.sub_(top_C1).exp_()
    total_C1 = grad_CV.sum(dim=-1, keepdim=True)
    norm_C1 = total_C1.log() + top_C1
    loss_C1 = norm_C1 - chosen_C1
    if z_loss:
        loss_C1 += z_loss * norm_C1.square()
    if wants_gradient:
        scale_C1 = is_target_C1 * (1.0 if logit_scale is None else logit_scale)
        grad_CV.mul_((1 + 2 * z_loss * norm_C1) / total_C1 * scale_C1)
        grad_CV.scatter_add_(1, index_C1, -scale_C1.expand_as(index_C1).float())
        if slope_CV is not None:
            grad_CV.mul_(slope_CV)
        rows_CV.copy_(grad_CV)
    return (loss_C1 * is_target_C1).sum()
