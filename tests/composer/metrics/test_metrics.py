"""Classification and segmentation metrics against torchmetrics and plain formulas."""

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import composer.metrics
from composer.metrics import CrossEntropy, Dice, LossMetric, MIoU


def test_cross_entropy_is_the_mean_of_the_batches():
    torch.manual_seed(0)
    metric, losses = CrossEntropy(), []
    for size in (4, 2):
        logits, target = torch.randn(size, 3), torch.randint(0, 3, (size,))
        losses.append(F.cross_entropy(logits, target))
        metric.update(logits, target)
    torch.testing.assert_close(metric.compute(), torch.stack(losses).mean())
    soft = CrossEntropy()
    soft.update(logits, F.one_hot(target, 3).float())
    torch.testing.assert_close(soft.compute(), losses[1])


def test_loss_metric_takes_any_loss():
    metric = LossMetric(F.mse_loss)
    metric.update(torch.tensor([1.0]), torch.tensor([3.0]))
    metric.update(torch.tensor([1.0]), torch.tensor([1.0]))
    assert metric.compute() == 2.0


def test_miou_by_hand():
    target = torch.tensor([[[0, 0, 1], [1, -1, 1]]])
    guess = torch.tensor([[[0, 1, 1], [1, 2, 0]]])
    metric = MIoU(num_classes=4)
    metric.update(F.one_hot(guess, 4).movedim(-1, 1), target)
    # class 0: 1 of 3, class 1: 2 of 4; class 2 is guessed under an ignored pixel only.
    torch.testing.assert_close(metric.compute(), torch.tensor(100 * (1 / 3 + 1 / 2) / 2))


def test_miou_matches_torchmetrics():
    classification = pytest.importorskip("torchmetrics.classification")
    torch.manual_seed(0)
    metric, reference = MIoU(5), classification.MulticlassJaccardIndex(5)
    for _ in range(3):
        logits, target = torch.randn(2, 5, 6, 6), torch.randint(0, 5, (2, 6, 6))
        metric.update(logits, target)
        reference.update(logits.argmax(1), target)
    torch.testing.assert_close(metric.compute(), 100 * reference.compute())


@pytest.mark.parametrize("num_classes", [2, 3])
def test_dice_by_hand(num_classes):
    target = torch.tensor([[1, 1, 0, 0]])
    guess = torch.tensor([[1, 0, 1, 0]])
    metric = Dice(num_classes)
    metric.update(F.one_hot(guess, 3).movedim(-1, 1), target)  # class 1: 2/4, class 2 absent: 1
    metric.update(F.one_hot(target, 3).movedim(-1, 1), target)  # 1 and 1
    assert metric.compute() == 87.5
    with pytest.raises(ValueError, match="num_classes"):
        Dice(5).update(torch.zeros(1, 3, 4), target)


def test_the_face_is_lazy_and_complete():
    code = "import sys, composer.metrics; sys.exit('torchmetrics' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    for name in composer.metrics.__all__:
        assert getattr(composer.metrics, name).__name__ == name
    with pytest.raises(AttributeError):
        composer.metrics.nothing
