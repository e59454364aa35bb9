"""The losses against recorded values, torch and plain formulas."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from composer.loss import (
    DiceLoss,
    binary_cross_entropy_with_logits,
    loss_registry,
    soft_cross_entropy,
)
from composer.loss.utils import ensure_targets_one_hot
from composer.metrics import CrossEntropy

GOLDEN = Path(__file__).parents[2] / "golden" / "trainer"
NPZ = np.load(GOLDEN / "functional.npz")


def _golden(name):
    return torch.from_numpy(NPZ[name])


def _close(actual, name):
    torch.testing.assert_close(actual, _golden(name), atol=1e-5, rtol=1e-5)


def test_recorded_soft_cross_entropy():
    logits, soft, hard, weight = (
        _golden(f"soft_ce|{k}") for k in ("logits", "soft", "hard", "weight")
    )
    _close(soft_cross_entropy(logits, soft), "soft_ce|out_soft")
    _close(soft_cross_entropy(logits, hard), "soft_ce|out_hard")
    _close(soft_cross_entropy(logits, soft, reduction="sum"), "soft_ce|out_soft_sum")
    _close(soft_cross_entropy(logits, soft, reduction="none"), "soft_ce|out_soft_none")
    _close(soft_cross_entropy(logits, soft, weight=weight), "soft_ce|out_soft_weight")
    _close(soft_cross_entropy(logits, hard, weight=weight), "soft_ce|out_hard_weight")
    recorded = json.loads((GOLDEN / "functional.json").read_text())["metrics"]
    for kind, target in (("hard", hard), ("soft", soft)):
        metric = CrossEntropy()
        metric.update(logits, target)
        assert metric.compute().item() == pytest.approx(recorded[f"CrossEntropy_{kind}"], abs=1e-5)


def test_recorded_binary_cross_entropy():
    logits, soft, hard = (_golden(f"soft_ce|{k}") for k in ("logits", "soft", "hard"))
    _close(binary_cross_entropy_with_logits(logits, hard), "soft_ce|bce_hard")
    _close(binary_cross_entropy_with_logits(logits, soft), "soft_ce|bce_soft")
    _close(
        binary_cross_entropy_with_logits(logits, hard, scale_by_batch_size=False),
        "soft_ce|bce_scaled",
    )


DICE = {
    "default": {},
    "softmax": {"softmax": True},
    "softmax_sq": {"softmax": True, "squared_pred": True},
    "softmax_jaccard": {"softmax": True, "jaccard": True},
    "sigmoid": {"sigmoid": True},
    "ignore_absent": {"softmax": True, "ignore_absent_classes": True},
    "batch": {"softmax": True, "batch": True},
}


@pytest.mark.parametrize("case", DICE)
def test_recorded_dice(case):
    _close(DiceLoss(**DICE[case])(_golden("dice|logits"), _golden("dice|target")), f"dice|{case}")


def test_dice_of_ignored_and_absent_parts():
    target = torch.tensor([[0, 1, -1, 1]])
    perfect = F.one_hot(target.clamp(min=0), 3).movedim(-1, 1).float()
    perfect[0, :, 2] = 0.7  # under an ignored label anything goes
    losses = DiceLoss(reduction="none")(perfect, target)
    assert losses.shape == (1, 3, 1)
    torch.testing.assert_close(losses.flatten(), torch.zeros(3), atol=1e-5, rtol=0)
    assert DiceLoss(ignore_absent_classes=True, reduction="none")(perfect, target).numel() == 2
    with pytest.raises(ValueError, match="not both"):
        DiceLoss(sigmoid=True, softmax=True)
    with pytest.raises(ValueError, match="reduction='max'"):
        DiceLoss(reduction="max")


@pytest.mark.parametrize("shape", [(6, 5), (4, 5, 3), (2, 5, 3, 2)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_one_hot_and_indices_agree(shape, reduction):
    torch.manual_seed(0)
    logits = torch.randn(shape)
    hard = torch.randint(0, 5, shape[:1] + shape[2:])
    soft = ensure_targets_one_hot(logits, hard)
    assert soft.shape == logits.shape and soft.dtype == torch.float
    torch.testing.assert_close(
        soft_cross_entropy(logits, soft, reduction=reduction),
        F.cross_entropy(logits, hard, reduction=reduction),
    )


@pytest.mark.filterwarnings("ignore:Negative label|Some targets have less")
def test_B13_ignored_labels_add_nothing():
    torch.manual_seed(0)
    logits = torch.randn(4, 5, requires_grad=True)
    soft = ensure_targets_one_hot(logits, torch.tensor([1, -100, 3, -1]))
    assert soft[1].sum() == soft[3].sum() == 0
    loss = soft_cross_entropy(logits, soft)
    torch.testing.assert_close(loss, F.cross_entropy(logits[[0, 2]], torch.tensor([1, 3])))
    loss.backward()
    assert logits.grad[1].abs().sum() == logits.grad[3].abs().sum() == 0


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_B13_ignored_labels_add_nothing_to_the_binary_cross_entropy(reduction):
    torch.manual_seed(0)
    logits, target = torch.randn(4, 5, requires_grad=True), torch.tensor([1, -100, 3, -1])
    settings = {"reduction": reduction, "pos_weight": torch.rand(5), "weight": torch.rand(5)}
    loss = binary_cross_entropy_with_logits(logits, target, **settings)
    kept = binary_cross_entropy_with_logits(logits[[0, 2]], target[[0, 2]], **settings)
    torch.testing.assert_close(loss[[0, 2]] if reduction == "none" else loss, kept)
    [gradient] = torch.autograd.grad(loss.sum(), logits)
    assert gradient[1].abs().sum() == gradient[3].abs().sum() == 0


def test_C3_logits_of_a_language_model_are_refused_in_words():
    with pytest.raises(ValueError, match=r"\(batch \* time, vocab\)"):
        ensure_targets_one_hot(torch.randn(2, 3, 7), torch.randint(0, 7, (2, 3)))


def test_warnings_and_errors():
    logits = torch.randn(2, 3)
    with pytest.warns(UserWarning, match="less than 1 total probability"):
        soft_cross_entropy(logits, torch.tensor([[0.5, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    with pytest.raises(ValueError, match="No targets have nonzero probability"):
        soft_cross_entropy(logits, torch.zeros(2, 3))
    with pytest.warns(UserWarning, match="ignore_index"):
        soft_cross_entropy(logits, torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]), ignore_index=2)
    with pytest.raises(ValueError, match="reduction='max'"):
        soft_cross_entropy(logits, torch.ones(2, 3), reduction="max")
    with pytest.warns(UserWarning, match="Negative label"):
        ensure_targets_one_hot(logits, torch.tensor([-1, 2]))
    assert set(loss_registry) == {"binary_cross_entropy_with_logits", "soft_cross_entropy"}
