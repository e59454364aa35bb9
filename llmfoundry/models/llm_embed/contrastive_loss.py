"""The contrastive loss of texts that belong together, and its mean over an evaluation.

Legend: Q queries, P passages, D width of an embedding, of one rank; W ranks.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torchmetrics import Metric

from composer.utils import dist

__all__ = ["ContrastiveConfig", "ContrastiveEvalLoss", "contrastive_loss", "pool"]

REPRESENTATIONS = ("avg", "eos")


@dataclass
class ContrastiveConfig:
    """How embeddings are made and compared.

    Args:
        temperature: Scores are divided by it.
        vector_representation: ``avg`` of a text's tokens, or its last token (``eos``).
        normalize_output: Whether embeddings have length 1.
        pos_step_size: Not used; kept for recipes that have it.
        gather_in_batch_negatives: Whether the passages of all ranks are negatives.
        use_legacy_gradient_passthrough: Whether passages of other ranks get no gradient.
        infonce_process_group_size: Gathers over so many consecutive ranks only.

    Raises:
        ValueError: If a setting is none of its choices, or would have no effect.
    """

    temperature: float = 1
    vector_representation: str = "avg"
    normalize_output: bool = True
    pos_step_size: int = -1
    gather_in_batch_negatives: bool = False
    use_legacy_gradient_passthrough: bool = False
    infonce_process_group_size: int | None = None

    def __post_init__(self) -> None:
        if self.vector_representation not in REPRESENTATIONS:
            raise ValueError(
                f"vector_representation={self.vector_representation!r} must be one of "
                f"{REPRESENTATIONS}."
            )
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} must be positive.")
        for name in ("use_legacy_gradient_passthrough", "infonce_process_group_size"):
            if getattr(self, name) and not self.gather_in_batch_negatives:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} has no effect without "
                    "gather_in_batch_negatives: true."
                )


def pool(hidden: torch.Tensor, mask: torch.Tensor, representation: str) -> torch.Tensor:
    """Makes one vector of a text's hidden states.

    Args:
        hidden: ``[N, S, D]``.
        mask: 1 for tokens, 0 for padding, ``[N, S]``; each text has a token.
        representation: ``avg`` or ``eos``, the last token.
    """
    if representation == "eos":
        position = torch.arange(mask.size(1), device=mask.device)
        last = (position * mask.bool()).amax(dim=1)
        return hidden[torch.arange(hidden.size(0), device=hidden.device), last]
    weights = mask.to(hidden.dtype)[..., None]
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def contrastive_loss(
    vectors: torch.Tensor, step: int, config: ContrastiveConfig, group: Any = None
) -> torch.Tensor:
    """Returns InfoNCE: the cross-entropy of each query's own passage among all of them.

    van den Oord et al., arXiv 1807.03748; with hard negatives as in Karpukhin et al., 2004.04906.

    Args:
        vectors: Embeddings ``[N, D]`` in blocks of ``step``: a query, its passage, its negatives.
        step: Texts of a block.
        config: How they are compared.
        group: The ranks whose passages are gathered, by default all.
    """
    blocks = vectors.unflatten(0, (-1, step))
    queries, passages = blocks[:, 0], blocks[:, 1:].flatten(0, 1)
    own = torch.arange(len(queries), device=vectors.device) * (step - 1)
    if config.gather_in_batch_negatives and dist.get_world_size() > 1:
        rank = torch.distributed.get_rank(group)
        own = own + rank * len(passages)
        passages = _gathered(passages, group, not config.use_legacy_gradient_passthrough)
    scores = queries @ passages.T / config.temperature
    return F.cross_entropy(scores.float(), own)


def _gathered(passages: torch.Tensor, group: Any, with_gradients: bool) -> torch.Tensor:
    if with_gradients:
        return _Gather.apply(passages, group)
    parts = dist.all_gather(passages.detach(), group)
    parts[torch.distributed.get_rank(group)] = passages
    return torch.cat(parts)


class _Gather(torch.autograd.Function):
    """All ranks' rows; a row's gradient is the sum of what it gets on each rank."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group, ctx.n_rows = group, len(rows)
        return torch.cat(dist.all_gather(rows.contiguous(), group))

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # one gradient
        ctx: Any, grad: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        grad = grad.contiguous()
        torch.distributed.all_reduce(grad, group=ctx.group)
        start = torch.distributed.get_rank(ctx.group) * ctx.n_rows
        return grad[start : start + ctx.n_rows], None


class ContrastiveEvalLoss(Metric):
    """The mean of the losses of an evaluation's batches."""

    loss: torch.Tensor
    total: torch.Tensor

    def __init__(self, dist_sync_on_step: bool = False) -> None:
        super().__init__(dist_sync_on_step=dist_sync_on_step)
        self.add_state("loss", default=torch.tensor(0.0), dist_reduce_fx="sum")
        self.add_state("total", default=torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, outputs: dict[str, Any], labels: Any = None) -> None:
        """Adds the loss of a batch."""
        del labels
        self.loss += outputs["loss"].detach().float()
        self.total += 1

    def compute(self) -> torch.Tensor:
        """Returns the mean."""
        return self.loss / self.total
