"""The random changes of images equal upstream's, and stay in their ranges."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from composer.algorithms.utils import augmentation_primitives
from composer.algorithms.utils.augmentation_primitives import augmentation_sets
from tests.composer.algorithms.golden_runs import functional_record
from tests.composer.trainer.test_golden_runs import GOLDEN

ALL = sorted({function.__name__ for each in augmentation_sets.values() for function in each})


def image():
    return Image.fromarray(functional_record("aug")["image"].numpy())


@pytest.mark.parametrize("name", [name for name in ALL if not name.endswith("_original")])
def test_golden(name):
    np.random.seed(13)
    changed = getattr(augmentation_primitives, name)(image(), 5)
    assert np.array_equal(
        np.asarray(changed), functional_record("aug")[f"op_{name}_level5_seed13"].numpy()
    )


def test_golden_sets():
    import json

    recorded = json.loads((GOLDEN / "functional.json").read_text())["augmentation_sets"]
    ours = {
        name: [function.__name__ for function in each] for name, each in augmentation_sets.items()
    }
    assert ours == recorded


def test_grey_images_and_the_highest_level():
    for name in ALL:
        function = getattr(augmentation_primitives, name)
        for _ in range(5):
            changed = function(image().convert("L"), 10)
            assert changed.mode == "L" and changed.size == (16, 16)


@pytest.mark.parametrize(
    ("function", "largest"), [("translate_x", 16 / 3), ("translate_y", 16 / 3), ("rotate", 30)]
)
def test_both_directions_and_the_largest_amount(function, largest, monkeypatch):
    amounts = []
    monkeypatch.setattr(
        augmentation_primitives, "_either_sign", lambda amount: amounts.append(amount) or 0
    )
    for _ in range(300):
        getattr(augmentation_primitives, function)(image(), 10)
    assert max(amounts) == int(largest - 1e-9)
    assert min(amounts) <= 1
    monkeypatch.undo()
    signs = {np.sign(augmentation_primitives._either_sign(1)) for _ in range(50)}
    assert signs == {-1, 1}


@pytest.mark.parametrize(
    ("name", "level", "expected"),
    [
        ("posterize", 5, lambda image: ImageOps.posterize(image, 2)),
        ("solarize", 5, lambda image: ImageOps.solarize(image, 128)),
        ("color_original", 10, lambda image: ImageEnhance.Color(image).enhance(1.9)),
        ("contrast_original", 10, lambda image: ImageEnhance.Contrast(image).enhance(1.9)),
        ("brightness_original", 10, lambda image: ImageEnhance.Brightness(image).enhance(1.9)),
        ("sharpness_original", 10, lambda image: ImageEnhance.Sharpness(image).enhance(1.9)),
    ],
)
def test_the_largest_that_can_be_drawn(name, level, expected, monkeypatch):
    monkeypatch.setattr(np.random, "uniform", lambda low=0.0, high=1.0: high)
    changed = getattr(augmentation_primitives, name)(image(), level)
    assert np.array_equal(np.asarray(changed), np.asarray(expected(image())))
