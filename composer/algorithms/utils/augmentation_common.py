"""Images as tensors and as Pillow images."""

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from PIL import Image

__all__ = ["ImageLike", "image_as_type", "map_pillow_function"]

ImageLike: TypeAlias = "torch.Tensor | Image.Image"
T = TypeVar("T", bound=ImageLike)


def image_as_type(image: ImageLike, typ: type[T]) -> T:
    """Returns an image as a tensor (C, H, W) of floats from 0 to 1, or as a Pillow image.

    Args:
        image: A tensor (C, H, W) of bytes, or of floats from 0 to 1, or a Pillow image.
        typ: ``torch.Tensor`` or ``PIL.Image.Image``; an image of that type is returned as it is.

    Raises:
        TypeError: If ``typ`` is neither.
        ValueError: If the tensor is no such image.
    """
    result: Any = image
    if isinstance(image, typ):
        return result
    if isinstance(image, torch.Tensor) and issubclass(typ, Image.Image):
        result = _to_pillow(image)
    elif isinstance(image, Image.Image) and issubclass(typ, torch.Tensor):
        result = _to_bytes(image).float() / 255
    else:
        raise TypeError(
            f"An image is a torch.Tensor or a PIL.Image.Image: {type(image).__name__} cannot be "
            f"made {typ.__name__}"
        )
    return result


def map_pillow_function(f_pil: Callable[[Image.Image], Image.Image], imgs: T) -> T:
    """Applies a function of Pillow images to a Pillow image, or to each image of a tensor.

    Args:
        f_pil: The function.
        imgs: A Pillow image, or a tensor (C, H, W) or (N, C, H, W) of bytes, or of floats from 0 to
            1.

    Returns:
        The same kind as ``imgs``; a tensor keeps its dtype and device.
    """
    result: Any
    if not isinstance(imgs, torch.Tensor):
        result = f_pil(imgs)
        return result
    if imgs.ndim > 3:
        result = torch.stack([map_pillow_function(f_pil, img) for img in imgs])
        return result
    new = _to_bytes(f_pil(_to_pillow(imgs)))
    if imgs.is_floating_point():
        new = new.to(imgs.dtype) / 255
    result = new.to(imgs.device)
    return result


def _to_pillow(image: torch.Tensor) -> Image.Image:
    if image.ndim != 3 or image.shape[0] not in (1, 3, 4):
        raise ValueError(
            f"A tensor of shape {tuple(image.shape)} is no image: it must be (C, H, W), with 1, 3 "
            "or 4 channels"
        )
    if image.is_floating_point():
        if image.min() < 0 or image.max() > 1:
            raise ValueError(
                f"Values from {float(image.min()):.3g} to {float(image.max()):.3g} are no image: "
                "floats must be from 0 to 1. Augment before the images are normalized"
            )
        image = (image * 255).round()
    pixels = image.to("cpu", torch.uint8).permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _to_bytes(image: Image.Image) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()
