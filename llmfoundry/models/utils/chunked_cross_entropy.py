"""Cross-entropy of a language model's head, without the logits of all tokens at once.

Legend: N tokens, C tokens of a chunk, E model width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["chunked_cross_entropy"]

CHUNK_ELEMENTS = 2**25
"""Logits of a chunk: 128 MiB in fp32, enough for the matrix product to run at full speed."""


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
        chunk_size: Tokens at a time; by default as many as make 2**25 logits.
        z_loss: Adds this times the square of each target's log normaliser (PaLM, arXiv 2204.02311).
    """
    dtype = hidden_NE.dtype
    if torch.is_autocast_enabled(hidden_NE.device.type):
        dtype = torch.get_autocast_dtype(hidden_NE.device.type)
    chunk_size = chunk_size or max(1, CHUNK_ELEMENTS // weight_VE.size(0))
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
            # fp32, for a sum over many chunks; autograd wants the weight's dtype, at the end.
            grad_VE = torch.zeros_like(weight_VE, dtype=torch.float32) if wants_weight else None
            for start in range(0, hidden_NE.size(0), chunk_size):
                rows = slice(start, start + chunk_size)
                hidden_CE, target_C = hidden_NE[rows].to(dtype), target_N[rows]
                logits_CV = F.linear(hidden_CE, cast_VE)
                chunk_loss, grad_CV = _loss_and_gradient(
                    logits_CV, target_C, ignore_index, logit_scale, softcap, z_loss,
                    wants_gradient=wants_hidden or wants_weight,
                )  # fmt: skip
                loss += chunk_loss
                if grad_NE is not None:
                    grad_NE[rows] = grad_CV @ cast_VE
                if grad_VE is not None and dtype == grad_VE.dtype:
                    grad_VE.addmm_(grad_CV.T, hidden_CE)
                elif grad_VE is not None:
                    grad_VE += grad_CV.T @ hidden_CE
        ctx.save_for_backward(grad_NE, None if grad_VE is None else grad_VE.to(weight_VE.dtype))
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator's doing
        ctx: Any, *grad_outputs: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        (grad_output,) = grad_outputs
        grad_NE, grad_VE = ctx.saved_tensors
        grad_NE = None if grad_NE is None else grad_NE * grad_output
        grad_VE = None if grad_VE is None else grad_VE.mul_(grad_output)
        return grad_NE, grad_VE, *[None] * 7


def _loss_and_gradient(
    logits_CV: torch.Tensor,
    target_C: torch.Tensor,
    ignore_index: int,
    logit_scale: float | None,
    softcap: float | None,
    z_loss: float,
    wants_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a chunk's summed loss and the gradient to its logits, in their memory."""
    dtype = logits_CV.dtype
    logits_CV = logits_CV.float()
    if logit_scale is not None:
        logits_CV.mul_(logit_scale)
    if softcap is not None:
        logits_CV.div_(softcap).tanh_().mul_(softcap)
    is_target_C = target_C != ignore_index
    index_C1 = target_C.masked_fill(~is_target_C, 0)[:, None]
    norm_C1 = logits_CV.logsumexp(dim=-1, keepdim=True)
    loss_C1 = norm_C1 - logits_CV.gather(1, index_C1)
    if z_loss:
        loss_C1 += z_loss * norm_C1.square()
    loss_C1 *= is_target_C[:, None]
    if not wants_gradient:
        return loss_C1.sum(), logits_CV
    slope_CV = None
    if softcap is not None:
        slope_CV = 1 - (logits_CV / softcap).square_()
    grad_CV = logits_CV.sub_(norm_C1).exp_()
    if z_loss:
        grad_CV.mul_(1 + 2 * z_loss * norm_C1)
    grad_CV.scatter_add_(1, index_C1, torch.full_like(norm_C1, -1.0))
    grad_CV.mul_(is_target_C[:, None] * (1.0 if logit_scale is None else logit_scale))
    if slope_CV is not None:
        grad_CV.mul_(slope_CV)
    return loss_C1.sum(), grad_CV.to(dtype)
