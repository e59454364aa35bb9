"""Random changes of an image, from which AugMix and RandAugment choose.

Each function takes an RGB or grey PIL image and a level from 0 to 10, draws how strongly to act (at
most as strongly as the level says) from numpy's generator, and returns a new image. The ranges are
those of AugMix (Hendrycks et al., 2020) and of AutoAugment (Cubuk et al., 2019).
"""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

__all__ = ["AugmentationFn", "augmentation_sets", "check_augmentation"]

AugmentationFn = Callable[[Image.Image, float], Image.Image]
"""Takes an image and a level."""

_BILINEAR = Image.Resampling.BILINEAR


def _amount(level: float, maximum: float) -> float:
    """Draws from 1 % of ``maximum`` to the part of it that the level is of 10."""
    return float(np.random.uniform(0.1, level)) * maximum / 10


def _either_sign(amount: float) -> float:
    return -amount if np.random.uniform() > 0.5 else amount


def _around_one(level: float) -> float:
    """Draws a factor above 1 or below it, equally often; 1 leaves the image as it is."""
    if np.random.uniform() > 0.5:
        return float(np.random.uniform(1, level))
    return float(np.random.uniform(1 - 0.09 * level, 1))


def _affine(pil_img: Image.Image, x: tuple[float, ...], y: tuple[float, ...]) -> Image.Image:
    """Maps each place of the result to a place of the image, by two rows of a matrix."""
    return pil_img.transform(pil_img.size, Image.Transform.AFFINE, (*x, *y), resample=_BILINEAR)


def autocontrast(pil_img: Image.Image, level: float = 0.0) -> Image.Image:
    """Stretches the values to the full range; the level does not matter."""
    del level
    return ImageOps.autocontrast(pil_img)


def equalize(pil_img: Image.Image, level: float) -> Image.Image:
    """Makes all values equally frequent; the level does not matter."""
    del level
    return ImageOps.equalize(pil_img)


def posterize(pil_img: Image.Image, level: float) -> Image.Image:
    """Keeps 4 bits of each value, or fewer."""
    return ImageOps.posterize(pil_img, 4 - int(_amount(level, 4)))


def rotate(pil_img: Image.Image, level: float) -> Image.Image:
    """Turns the image by up to 30 degrees either way."""
    return pil_img.rotate(_either_sign(int(_amount(level, 30))), resample=_BILINEAR)


def solarize(pil_img: Image.Image, level: float) -> Image.Image:
    """Inverts the values above a threshold."""
    return ImageOps.solarize(pil_img, 256 - int(_amount(level, 256)))


def shear_x(pil_img: Image.Image, level: float) -> Image.Image:
    """Shears the image horizontally, by up to 0.3."""
    return _affine(pil_img, (1, _either_sign(_amount(level, 0.3)), 0), (0, 1, 0))


def shear_y(pil_img: Image.Image, level: float) -> Image.Image:
    """Shears the image vertically, by up to 0.3."""
    return _affine(pil_img, (1, 0, 0), (_either_sign(_amount(level, 0.3)), 1, 0))


def translate_x(pil_img: Image.Image, level: float) -> Image.Image:
    """Moves the image sideways by up to a third of its width."""
    shift = _either_sign(int(_amount(level, pil_img.size[0] / 3)))
    return _affine(pil_img, (1, 0, shift), (0, 1, 0))


def translate_y(pil_img: Image.Image, level: float) -> Image.Image:
    """Moves the image up or down by up to a third of its height."""
    shift = _either_sign(int(_amount(level, pil_img.size[1] / 3)))
    return _affine(pil_img, (1, 0, 0), (0, 1, shift))


def color(pil_img: Image.Image, level: float) -> Image.Image:
    """Makes colours stronger or weaker."""
    return ImageEnhance.Color(pil_img).enhance(_around_one(level))


def color_original(pil_img: Image.Image, level: float) -> Image.Image:
    """Changes the strength of colours by a factor from 0.1 to 1.9, as in the AugMix paper."""
    return ImageEnhance.Color(pil_img).enhance(_amount(level, 1.8) + 0.1)


def contrast(pil_img: Image.Image, level: float) -> Image.Image:
    """Makes the contrast stronger or weaker."""
    return ImageEnhance.Contrast(pil_img).enhance(_around_one(level))


def contrast_original(pil_img: Image.Image, level: float) -> Image.Image:
    """Changes the contrast by a factor from 0.1 to 1.9, as in the AugMix paper."""
    return ImageEnhance.Contrast(pil_img).enhance(_amount(level, 1.8) + 0.1)


def brightness(pil_img: Image.Image, level: float) -> Image.Image:
    """Makes the image brighter, or darker."""
    factor = _around_one(level)
    # Twice as bright is far more of a change than twice the contrast: white takes over.
    return ImageEnhance.Brightness(pil_img).enhance(factor * 0.75 if factor > 1 else factor)


def brightness_original(pil_img: Image.Image, level: float) -> Image.Image:
    """Changes the brightness by a factor from 0.1 to 1.9, as in the AugMix paper."""
    return ImageEnhance.Brightness(pil_img).enhance(_amount(level, 1.8) + 0.1)


def sharpness(pil_img: Image.Image, level: float) -> Image.Image:
    """Sharpens the image, or blurs it."""
    return ImageEnhance.Sharpness(pil_img).enhance(_around_one(level))


def sharpness_original(pil_img: Image.Image, level: float) -> Image.Image:
    """Changes the sharpness by a factor from 0.1 to 1.9, as in the AugMix paper."""
    return ImageEnhance.Sharpness(pil_img).enhance(_amount(level, 1.8) + 0.1)


_safe: list[AugmentationFn] = [
    autocontrast,
    equalize,
    posterize,
    rotate,
    solarize,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
]

augmentation_sets: dict[str, list[AugmentationFn]] = {
    "all": [*_safe, color, contrast, brightness, sharpness],
    "safe": _safe,
    "original": [
        *_safe,
        color_original,
        contrast_original,
        brightness_original,
        sharpness_original,
    ],
}
"""What to choose from: ``safe`` leaves out what ImageNet-C, a test of robustness, measures."""


def check_augmentation(severity: int, augmentation_set: str) -> None:
    """Refuses a severity or a set that does not exist.

    Raises:
        ValueError: If the severity is not from 0 to 10.
        KeyError: For an unknown set.
    """
    if not 0 <= severity <= 10:
        raise ValueError(f"severity={severity} must be from 0 to 10")
    if augmentation_set not in augmentation_sets:
        raise KeyError(
            f"augmentation_set={augmentation_set!r} is unknown; use one of "
            f"{', '.join(augmentation_sets)}"
        )
