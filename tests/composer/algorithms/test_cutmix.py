"""CutMix equals upstream's, and mixes targets by the area that was pasted."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from composer.algorithms.cutmix import CutMix, cutmix_batch
from composer.algorithms.cutmix.cutmix import _rand_bbox
from composer.core.callback import Callback
from composer.models import ComposerClassifier
from tests.composer.algorithms.golden_runs import functional_record, seed_as
from tests.composer.algorithms.training import train


def test_golden():
    record = functional_record("cutmix")
    mixed, target, kept, box = cutmix_batch(
        record["x"], record["y"], bbox=tuple(record["bbox"].tolist()), indices=record["indices"]
    )
    assert torch.equal(mixed, record["x_out"])
    assert torch.equal(target, record["y_perm"])
    assert kept == record["adjusted_lambda"]
    assert list(box) == record["bbox_out"].tolist()


def test_golden_draws():
    data, record = functional_record("cutmix"), functional_record("cutmix_alpha_rng")
    seed_as(record)
    mixed, target, kept, box = cutmix_batch(
        data["x"],
        data["y"],
        alpha=float(record["alpha"]),
        uniform_sampling=bool(record["uniform_sampling"]),
    )
    assert list(box) == record["bbox_out"].tolist()
    assert kept == record["adjusted_lambda"]
    assert torch.equal(target, record["y_perm"])
    assert torch.equal(mixed, record["x_out"])


def test_golden_length():
    data, record = functional_record("cutmix"), functional_record("cutmix_len_rng")
    seed_as(record)
    mixed, _, kept, box = cutmix_batch(
        data["x"], data["y"], length=float(record["length"]), indices=record["indices"]
    )
    assert list(box) == record["bbox_out"].tolist()
    assert kept == record["adjusted_lambda"]
    assert torch.equal(mixed, record["x_out"])


def test_lengths_are_whole_pixels():
    # 1 by 20 of 3 by 40 pixels stay, which leaves int(3 * 0.913) by int(40 * 0.913).
    boxes = [cutmix_batch(torch.zeros(2, 1, 3, 40), torch.zeros(2), 0.5)[3] for _ in range(50)]
    assert max(x2 - x1 for x1, _, x2, _ in boxes) == 2
    assert max(y2 - y1 for _, y1, _, y2 in boxes) == 36


def test_boxes():
    assert _rand_bbox(8, 16, 0.75, cx=4, cy=8) == (2, 4, 6, 12)
    assert _rand_bbox(8, 8, 0.75, cx=0, cy=7) == (0, 5, 2, 8)
    areas, cuts = [], torch.zeros(8, 8)
    for _ in range(4000):
        x1, y1, x2, y2 = _rand_bbox(8, 8, 0.75, uniform_sampling=True)
        areas.append((x2 - x1) * (y2 - y1))
        cuts[x1:x2, y1:y2] += 1
    assert max(areas) == 16
    assert cuts.max() / cuts.min() < 1.4  # every pixel equally often


class Segments(ComposerClassifier):
    def __init__(self, classes=4):
        super().__init__(torch.nn.Conv2d(3, classes, 3, padding=1), num_classes=classes)


class Pooled(ComposerClassifier):
    def __init__(self, classes=4):
        layers = (torch.nn.Conv2d(3, classes, 3), torch.nn.AdaptiveAvgPool2d(1))
        super().__init__(torch.nn.Sequential(*layers, torch.nn.Flatten()), num_classes=classes)


class Look(Callback):
    """Checks each micro-batch's images and loss against those of its rows."""

    def __init__(self, algorithm, images, targets):
        self.algorithm, self.images, self.targets = algorithm, images, targets
        self.areas = []

    def after_backward(self, state, logger):
        size = len(state.outputs)
        start = len(self.areas) * size % len(self.images)
        images, targets = self.images[start : start + size], self.targets[start : start + size]
        x1, y1, x2, y2 = self.algorithm._bbox
        others = self.algorithm._indices
        pasted = torch.zeros(8, 8, dtype=torch.bool)
        pasted[x1:x2, y1:y2] = True
        assert torch.equal(state.batch[0], torch.where(pasted, images[others], images))
        share = pasted.float().mean()
        if targets.ndim == 3:
            mixed = torch.where(pasted, targets[others], targets)
            expected = F.cross_entropy(state.outputs, mixed)
        else:
            expected = (1 - share) * F.cross_entropy(state.outputs, targets)
            expected += share * F.cross_entropy(state.outputs, targets[others])
        assert torch.isclose(state.loss, expected, atol=1e-6)
        self.areas.append(float(share))


def fit(algorithm, dense):
    torch.manual_seed(1)
    images = torch.randn(8, 3, 8, 8)
    targets = torch.randint(0, 4, (8, 8, 8) if dense else (8,))
    look = Look(algorithm, images, targets)
    rows = torch.utils.data.TensorDataset(images, targets)
    train(
        Segments() if dense else Pooled(),
        torch.utils.data.DataLoader(rows, batch_size=8),
        algorithm,
        look,
        duration="3ep",
        device_train_microbatch_size=4,
    )
    return look


@pytest.mark.parametrize(("interpolate", "dense"), [(False, False), (True, False), (False, True)])
def test_targets_follow_the_images(interpolate, dense):
    look = fit(CutMix(1.0, interpolate), dense)
    assert len(look.areas) == 6
    assert np.ptp(look.areas) > 0.1


def test_losses_of_dense_targets_cannot_be_interpolated():
    with pytest.raises(ValueError, match="interpolate_loss=True cannot mix targets"):
        fit(CutMix(interpolate_loss=True), dense=True)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="give one of them"):
        cutmix_batch(torch.zeros(2, 1, 4, 4), torch.zeros(2), length=0.5, bbox=(0, 0, 1, 1))
    with pytest.raises(ValueError, match="not shape"):
        cutmix_batch(torch.zeros(2, 4), torch.zeros(2))
