"""The share of tokens that were likeliest."""

import torch

from llmfoundry.metrics.token_acc import TokenAccuracy


def test_token_accuracy() -> None:
    metric = TokenAccuracy()
    assert metric.compute() == 0
    logits = torch.eye(4)[torch.tensor([[0, 1, 2, 3], [3, 3, 3, 3]])]
    metric.update(logits, torch.tensor([[0, 1, -100, 0], [3, -100, -100, -100]]))
    assert metric.compute() == 3 / 4
    metric.update(logits, torch.full((2, 4), -100))
    assert metric.compute() == 3 / 4
