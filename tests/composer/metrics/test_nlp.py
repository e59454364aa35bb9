"""Language metrics against recorded values, torch and each other."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from composer.metrics import (
    BinaryF1Score,
    LanguageCrossEntropy,
    LanguagePerplexity,
    MaskedAccuracy,
    nlp,
)
from tests.launch import run_ranks

GOLDEN = Path(__file__).parents[2] / "golden" / "trainer"
RECORDED = json.loads((GOLDEN / "functional.json").read_text())["metrics"]


@pytest.mark.parametrize("cls", [LanguageCrossEntropy, LanguagePerplexity, MaskedAccuracy])
def test_recorded_values(cls):
    npz = np.load(GOLDEN / "functional.npz")
    metric, values = cls(), []
    for i in (1, 2):
        metric.update(
            torch.from_numpy(npz[f"metrics|logits{i}"]), torch.from_numpy(npz[f"metrics|target{i}"])
        )
        values.append(metric.compute().item())
    assert values == pytest.approx(RECORDED[cls.__name__], rel=1e-5)


def _ragged(lengths=(2, 3, 5, 8, 13), vocab=11):
    torch.manual_seed(0)
    width = max(lengths)
    logits = torch.randn(len(lengths), width, vocab) * 3
    labels = torch.full((len(lengths), width), -100)
    for row, length in enumerate(lengths):
        labels[row, :length] = torch.randint(0, vocab, (length,))
    return logits, labels


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_B07_mean_over_tokens_whatever_the_batch(batch):
    logits, labels = _ragged()
    nll = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    expected = nll / (labels != -100).sum()
    cross_entropy, perplexity, accuracy = (
        LanguageCrossEntropy(),
        LanguagePerplexity(),
        MaskedAccuracy(),
    )
    for some_logits, some_labels in zip(logits.split(batch), labels.split(batch), strict=True):
        cross_entropy.update({"logits": some_logits}, some_labels)
        perplexity.update(some_logits, some_labels)
        accuracy.update(some_logits, some_labels)
    torch.testing.assert_close(cross_entropy.compute(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(perplexity.compute(), expected.exp(), atol=1e-5, rtol=1e-5)
    right = ((logits.argmax(-1) == labels) & (labels != -100)).sum()
    torch.testing.assert_close(accuracy.compute(), right / (labels != -100).sum())


def test_large_logits_are_taken_in_pieces(monkeypatch):
    logits, labels = _ragged()
    whole = LanguageCrossEntropy()
    whole.update(logits, labels)
    monkeypatch.setattr(nlp, "_PIECE", 40)
    pieces = LanguageCrossEntropy()
    pieces.update(logits, labels)
    torch.testing.assert_close(pieces.compute(), whole.compute())


def test_bf16_logits_are_summed_in_full_precision():
    logits, labels = _ragged()
    low = logits.bfloat16()
    metric, reference = LanguageCrossEntropy(), LanguageCrossEntropy()
    for _ in range(50):
        metric.update(low, labels)
    reference.update(low.float(), labels)
    torch.testing.assert_close(metric.compute(), reference.compute(), atol=1e-6, rtol=1e-6)


def test_only_logits_are_accepted():
    with pytest.raises(TypeError, match="needs logits"):
        LanguageCrossEntropy().update([1.0], torch.tensor([1]))


def test_binary_f1_score():
    torchmetrics = pytest.importorskip("torchmetrics.classification")
    torch.manual_seed(3)
    metric, reference = BinaryF1Score(), torchmetrics.BinaryF1Score()
    for _ in range(3):
        logits, target = torch.randn(9, 2), torch.randint(0, 2, (9,))
        metric.update(logits, target)
        reference.update(logits.argmax(1), target)
    torch.testing.assert_close(metric.compute(), reference.compute())


@pytest.mark.parametrize("name", [n for n in nlp.__all__ if n.startswith("InContext")])
def test_moved_metrics_say_so(name):
    with pytest.raises(RuntimeError, match=name):
        getattr(nlp, name)()


def _shares_of_a_metric():
    logits, labels = _ragged()
    rows = slice(0, 1) if torch.distributed.get_rank() == 0 else slice(1, 5)
    metrics = [LanguageCrossEntropy(), MaskedAccuracy()]
    for metric in metrics:
        metric.update(logits[rows], labels[rows])
    return [metric.compute() for metric in metrics]


def test_ranks_with_unequal_shares_give_the_mean_over_all_tokens():
    logits, labels = _ragged()
    expected = []
    for metric in (LanguageCrossEntropy(), MaskedAccuracy()):
        metric.update(logits, labels)
        expected.append(metric.compute())
    for values in run_ranks(_shares_of_a_metric, 2):
        torch.testing.assert_close(values, expected)
