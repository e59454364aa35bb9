"""RandAugment equals upstream's, and is added once to a dataset of images."""

import numpy as np
import pytest
import torch
from PIL import Image

from composer.algorithms.randaugment import RandAugment, RandAugmentTransform, randaugment_image
from composer.algorithms.utils import augmentation_sets
from tests.composer.algorithms.golden_runs import functional_record
from tests.composer.algorithms.images import Images, loaded


@pytest.mark.parametrize("name", ["safe", "original", "all"])
def test_golden(name):
    record = functional_record("aug")
    np.random.seed(11)
    image = Image.fromarray(record["image"].numpy())
    changed = randaugment_image(image, 5, augmentation_set=augmentation_sets[name])
    assert np.array_equal(np.asarray(changed), record[f"randaugment_{name}_seed11"])


def test_depth_and_severity():
    calls = []

    def count(image, level):
        calls.append(level)
        return image

    images = torch.randint(0, 256, (3, 3, 4, 4), dtype=torch.uint8)
    assert torch.equal(randaugment_image(images, 4, 5, [count]), images)
    assert calls == [4] * 15


def test_dataset():
    dataset = Images(6)
    images, _ = loaded(RandAugment(), dataset)
    names = [type(step).__name__ for step in dataset.transform.transforms]
    assert names == ["RandAugmentTransform", "ToTensor"]
    originals = torch.from_numpy(dataset.pixels).permute(0, 3, 1, 2) / 255
    assert ((images - originals).flatten(1).abs().amax(1) > 0.1).sum() >= 4
    untouched, _ = loaded(RandAugment(depth=0), Images(6))
    assert torch.equal(untouched, originals)


@pytest.mark.parametrize("kind", [RandAugment, RandAugmentTransform])
@pytest.mark.parametrize(
    ("error", "kwargs"),
    [
        (ValueError, {"severity": -1}),
        (ValueError, {"depth": -1}),
        (KeyError, {"augmentation_set": "none"}),
    ],
)
def test_wrong_settings(kind, error, kwargs):
    with pytest.raises(error, match=next(iter(kwargs))):
        kind(**kwargs)
