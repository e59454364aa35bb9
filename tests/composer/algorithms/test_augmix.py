"""AugMix equals upstream's, and is added once to a dataset of images."""

import numpy as np
import pytest
import torch
from PIL import Image

from composer.algorithms.augmix import AugmentAndMixTransform, AugMix, augmix_image
from composer.algorithms.utils import augmentation_sets
from tests.composer.algorithms.golden_runs import functional_record
from tests.composer.algorithms.images import Images, loaded


@pytest.mark.parametrize("name", ["safe", "original", "all"])
def test_golden(name):
    record = functional_record("aug")
    np.random.seed(12)
    image = Image.fromarray(record["image"].numpy())
    mixed = augmix_image(image, augmentation_set=augmentation_sets[name])
    assert np.array_equal(np.asarray(mixed), record[f"augmix_{name}_seed12"])


def test_chains_are_as_deep_as_asked():
    calls = []

    def count(image, level):
        calls.append(level)
        return image

    image = Image.fromarray(np.full((4, 4, 3), 77, dtype=np.uint8))
    mixed = augmix_image(image, severity=7, depth=5, width=4, augmentation_set=[count])
    assert calls == [7] * 20
    assert np.abs(np.asarray(mixed).astype(int) - 77).max() <= 1  # weights add up to one
    calls.clear()
    for _ in range(50):
        augmix_image(image, depth=-1, width=1, augmentation_set=[count])
    assert 60 < len(calls) < 140


def test_dataset():
    dataset = Images(6)
    plain, _ = loaded(AugMix(severity=0, width=1, augmentation_set="safe"), Images(6))
    np.random.seed(3)
    images, labels = loaded(AugMix(severity=9), dataset)
    assert [type(step).__name__ for step in dataset.transform.transforms] == [
        "AugmentAndMixTransform",
        "ToTensor",
    ]
    assert images.shape == plain.shape and images.is_floating_point()
    assert labels.tolist() == [0, 1, 2, 3, 0, 1]
    originals = torch.from_numpy(dataset.pixels).permute(0, 3, 1, 2) / 255
    assert ((images - originals).flatten(1).abs().amax(1) > 0.05).sum() >= 4
    np.random.seed(3)
    again = AugmentAndMixTransform(severity=9)(Image.fromarray(dataset.pixels[0]))
    assert np.array_equal(np.asarray(again), (images[0] * 255).round().permute(1, 2, 0).numpy())


@pytest.mark.parametrize("kind", [AugMix, AugmentAndMixTransform])
@pytest.mark.parametrize(
    ("error", "kwargs"),
    [
        (ValueError, {"severity": 11}),
        (ValueError, {"width": 0}),
        (ValueError, {"alpha": 0.0}),
        (KeyError, {"augmentation_set": "none"}),
    ],
)
def test_wrong_settings(kind, error, kwargs):
    with pytest.raises(error, match=next(iter(kwargs))):
        kind(**kwargs)
