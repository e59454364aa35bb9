"""Metrics of language models: means over tokens, whatever the batches they came in."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torchmetrics import Metric

__all__ = [
    "BinaryF1Score",
    "InContextLearningCodeEvalAccuracy",
    "InContextLearningLMAccuracy",
    "InContextLearningLMExpectedCalibrationError",
    "InContextLearningMCExpectedCalibrationError",
    "InContextLearningMetric",
    "InContextLearningMultipleChoiceAccuracy",
    "InContextLearningQAAccuracy",
    "LanguageCrossEntropy",
    "LanguagePerplexity",
    "MaskedAccuracy",
]

# Logits are widened to fp32 in pieces of this many elements (256 MB), not all at once.
_PIECE = 2**26


def _logits(output: Any) -> torch.Tensor:
    if isinstance(output, Mapping):
        return output["logits"]
    if isinstance(output, torch.Tensor):
        return output
    raise TypeError(
        "A metric needs logits: a Tensor, or a Mapping with the key 'logits', but got "
        f"{type(output).__name__}."
    )


def _summed_nll(logits: torch.Tensor, targets: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Sums the negative log-likelihood over the tokens that count, in fp32 and then fp64."""
    rows = max(1, _PIECE // logits.shape[-1])
    total = torch.zeros((), dtype=torch.float64, device=logits.device)
    for some_logits, some in zip(logits.split(rows), targets.split(rows), strict=True):
        total += F.cross_entropy(
            some_logits.float(), some, ignore_index=ignore_index, reduction="sum"
        )
    return total


class MaskedAccuracy(Metric):
    """Share of the targets that count for which the largest logit is right.

    Args:
        ignore_index: Label that does not count.
        dist_sync_on_step: Synchronises over the ranks on every call of ``forward``.
    """

    full_state_update = False
    correct: torch.Tensor
    total: torch.Tensor

    def __init__(self, ignore_index: int = -100, dist_sync_on_step: bool = False) -> None:
        super().__init__(dist_sync_on_step=dist_sync_on_step)
        self.ignore_index = ignore_index
        self.add_state("correct", default=torch.tensor(0), dist_reduce_fx="sum")
        self.add_state("total", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds: Any, target: torch.Tensor) -> None:
        """Adds a batch of logits (classes in the last dimension) and labels."""
        kept = target != self.ignore_index
        self.correct += ((_logits(preds).argmax(dim=-1) == target) & kept).sum()
        self.total += kept.sum()

    def compute(self) -> torch.Tensor:
        """Returns the share so far."""
        return self.correct.float() / self.total


class LanguageCrossEntropy(Metric):
    """Cross entropy per token: the total over the total number of tokens, not a mean of means.

    Args:
        dist_sync_on_step: Synchronises over the ranks on every call of ``forward``.
        ignore_index: Label that does not count.
    """

    full_state_update = False
    sum_loss: torch.Tensor
    total_items: torch.Tensor

    def __init__(self, dist_sync_on_step: bool = False, ignore_index: int = -100) -> None:
        super().__init__(dist_sync_on_step=dist_sync_on_step)
        self.ignore_index = ignore_index
        self.loss_fn = torch.nn.CrossEntropyLoss(ignore_index=ignore_index, reduction="sum")
        # fp64, or the last batches of a long evaluation would be rounded away.
        self.add_state(
            "sum_loss", default=torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum"
        )
        self.add_state("total_items", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, output: Any, target: torch.Tensor) -> None:
        """Adds a batch.

        Args:
            output: Logits, with the vocabulary in the last dimension, or a Mapping that holds them
                as ``logits``.
            target: Labels, already shifted to stand under the logits that predict them.
        """
        logits = _logits(output)
        target = target.reshape(-1)
        self.sum_loss += _summed_nll(
            logits.reshape(-1, logits.shape[-1]), target, self.ignore_index
        )
        self.total_items += (target != self.ignore_index).sum()

    def compute(self) -> torch.Tensor:
        """Returns the cross entropy per token in nats."""
        return (self.sum_loss / self.total_items).float()


class LanguagePerplexity(LanguageCrossEntropy):
    """Exponential of the cross entropy per token."""

    def compute(self) -> torch.Tensor:
        """Returns the perplexity."""
        return torch.exp(super().compute())


class BinaryF1Score(Metric):
    """F1 score of class 1 against class 0.

    Args:
        dist_sync_on_step: Synchronises over the ranks on every call of ``forward``.
    """

    full_state_update = False
    true_positive: torch.Tensor
    false_positive: torch.Tensor
    false_negative: torch.Tensor

    def __init__(self, dist_sync_on_step: bool = False) -> None:
        super().__init__(dist_sync_on_step=dist_sync_on_step)
        for name in ("true_positive", "false_positive", "false_negative"):
            self.add_state(name, default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, output: Any, target: torch.Tensor) -> None:
        """Adds a batch of logits (classes in dimension 1) and labels."""
        predicted = _logits(output).argmax(dim=1)
        self.true_positive += ((predicted == 1) & (target == 1)).sum()
        self.false_positive += ((predicted == 1) & (target == 0)).sum()
        self.false_negative += ((predicted == 0) & (target == 1)).sum()

    def compute(self) -> torch.Tensor:
        """Returns the score so far."""
        wrong = self.false_negative + self.false_positive
        return self.true_positive / (self.true_positive + 0.5 * wrong)


class InContextLearningMetric:
    """Stands where the in-context-learning metrics were, so that old pickles name something."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise RuntimeError(
            f"{type(self).__name__} is no longer part of composer; use the class of the same name "
            "in llmfoundry.eval.metrics."
        )


class InContextLearningQAAccuracy(InContextLearningMetric):
    """Moved to ``llmfoundry.eval.metrics``."""


class InContextLearningCodeEvalAccuracy(InContextLearningMetric):
    """Moved to ``llmfoundry.eval.metrics``."""


class InContextLearningLMAccuracy(InContextLearningMetric):
    """Moved to ``llmfoundry.eval.metrics``."""


class InContextLearningLMExpectedCalibrationError(InContextLearningMetric):
    """Moved to ``llmfoundry.eval.metrics``."""


class InContextLearningMCExpectedCalibrationError(InContextLearningMetric):
    """Moved to ``llmfoundry.eval.metrics``."""


class InContextLearningMultipleChoiceAccuracy(InContextLearningMetric):
    """Moved to ``llmfoundry.eval.metrics``."""
