"""Images become tensors and Pillow images without a change."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from composer.algorithms.utils.augmentation_common import image_as_type, map_pillow_function


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_there_and_back(channels):
    pixels = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8)
    pillow = image_as_type(pixels, Image.Image)
    assert pillow.size == (7, 5)
    floats = image_as_type(pillow, torch.Tensor)
    assert floats.dtype is torch.float32 and floats.shape == pixels.shape
    torch.testing.assert_close(floats, pixels / 255)
    again = image_as_type(floats, Image.Image)
    assert np.array_equal(np.asarray(again), np.asarray(pillow))
    assert image_as_type(pillow, Image.Image) is pillow


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 3, 4, 5)])
def test_functions_of_pillow_images_take_tensors(dtype, shape):
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
    images = pixels if dtype is torch.uint8 else pixels.to(dtype) / 255
    mirrored = map_pillow_function(ImageOps.mirror, images)
    assert mirrored.dtype is dtype
    torch.testing.assert_close(mirrored, images.flip(-1))


def test_what_is_no_image_is_refused():
    with pytest.raises(ValueError, match="before the images are normalized"):
        map_pillow_function(ImageOps.mirror, torch.randn(3, 8, 8))
    with pytest.raises(ValueError, match="is no image"):
        image_as_type(torch.zeros(2, 3, 8, 8), Image.Image)
    with pytest.raises(TypeError, match="cannot be made ndarray"):
        image_as_type(torch.zeros(3, 8, 8), np.ndarray)
