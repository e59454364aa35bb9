"""How often the likeliest token is the right one."""

import torch
from torchmetrics import Metric

from llmfoundry.utils.consts import CROSS_ENTROPY_IGNORE_INDEX

__all__ = ["TokenAccuracy"]


class TokenAccuracy(Metric):
    """The share of targets that the model holds likeliest.

    Args:
        ignore_index: Targets of this value do not count.
        dist_sync_on_step: Adds up over the ranks at every step and not only at the end.
    """

    full_state_update = False

    correct_tokens: torch.Tensor
    total_tokens: torch.Tensor

    def __init__(
        self, ignore_index: int = CROSS_ENTROPY_IGNORE_INDEX, dist_sync_on_step: bool = False
    ) -> None:
        super().__init__(dist_sync_on_step=dist_sync_on_step)
        self.ignore_index = ignore_index
        self.add_state("correct_tokens", default=torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("total_tokens", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:
        """Counts a batch.

        Args:
            preds: Logits, with the vocabulary last.
            target: Targets.
        """
        counted = target != self.ignore_index
        self.total_tokens += counted.sum()
        self.correct_tokens += ((preds.argmax(dim=-1) == target) & counted).sum()

    def compute(self) -> torch.Tensor:
        """The share, or 0 of no targets."""
        return self.correct_tokens.float() / self.total_tokens.clamp(min=1)
