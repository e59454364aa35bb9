"""CutMix: pastes a box of one image into another."""

from typing import Any, TypeAlias

import numpy as np
import torch

from composer.algorithms.utils.sample_mixing import SampleMixing

Box: TypeAlias = tuple[int, int, int, int]
"""Where it begins on the axes 2 and 3 of a batch of images, and where it ends on them."""


def cutmix_batch(
    input: torch.Tensor,
    target: torch.Tensor,
    length: float | None = None,
    alpha: float = 1.0,
    bbox: Box | None = None,
    indices: torch.Tensor | None = None,
    uniform_sampling: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, float, Box]:
    """Pastes a box of another image into each image of a batch (CutMix, Yun et al., 2019).

    Args:
        input: Images, (N, C, H, W).
        target: The targets, samples along axis 0.
        length: How much of each side stays: the box has the area that one with sides of this
            fraction leaves over. If None, the size is drawn.
        alpha: Draws the fraction of the area that stays from Beta(alpha, alpha).
        bbox: The box, (begin on axis 2, begin on axis 3, end on axis 2, end on axis 3).
        indices: The image that each gets the box of; drawn if None.
        uniform_sampling: Lets every pixel be cut equally often: centres may be outside of the
            image. Otherwise they are inside, and the middle is cut more often.

    Returns:
        The mixed images, the other images' targets, the fraction of an image that is its own, and
        the box.

    Raises:
        ValueError: If both length and bbox are given, or the input is not a batch of images.
    """
    if length is not None and bbox is not None:
        raise ValueError(f"length={length} and bbox={bbox} both say what is cut; give one of them")
    if input.ndim != 4:
        raise ValueError(f"CutMix takes images (N, C, H, W), not shape {tuple(input.shape)}")
    if indices is None:
        indices = torch.randperm(input.shape[0], device=input.device)
    height, width = input.shape[2:]
    if bbox is None:
        if length is None:
            kept = float(np.random.beta(alpha, alpha)) if alpha else 0.0
        else:
            kept = int(length * height) * int(length * width) / (height * width)
        bbox = _rand_bbox(height, width, kept, uniform_sampling=uniform_sampling)
    area = (bbox[2] - bbox[0]) * (bbox[3] - bbox[1])
    return _paste(input, indices, bbox), target[indices], 1 - area / (height * width), bbox


def _rand_bbox(
    W: int,
    H: int,
    cutmix_lambda: float,
    cx: int | None = None,
    cy: int | None = None,
    uniform_sampling: bool = False,
) -> Box:
    """Draws a box around a centre, with all of an image but a part ``cutmix_lambda`` of its area.

    Args:
        W: Size of axis 2.
        H: Size of axis 3.
        cutmix_lambda: The part that stays; more where the box is partly outside of the image.
        cx: The centre on axis 2; drawn if None.
        cy: The centre on axis 3; drawn if None.
        uniform_sampling: Lets the centre be outside of the image, by half of the box.
    """
    ratio = (1 - cutmix_lambda) ** 0.5
    first, second = (
        _interval(size, int(size * ratio), centre, uniform_sampling)
        for size, centre in ((W, cx), (H, cy))
    )
    return first[0], second[0], first[1], second[1]


def _interval(size: int, cut: int, centre: int | None, uniform: bool) -> tuple[int, int]:
    if centre is None:
        margin = cut if uniform else 0
        centre = int(np.random.randint(-margin // 2, size + margin // 2))
    return min(max(centre - cut // 2, 0), size), min(max(centre + cut // 2, 0), size)


def _paste(images: torch.Tensor, indices: torch.Tensor, bbox: Box) -> torch.Tensor:
    box = (..., slice(bbox[0], bbox[2]), slice(bbox[1], bbox[3]))
    mixed = images.clone()
    mixed[box] = images[box][indices]
    return mixed


class CutMix(SampleMixing):
    """Pastes a box of one image into another of its micro-batch (CutMix, Yun et al., 2019).

    Targets that are images of the same size (segmentation masks) are cut and pasted alike. Others
    are mixed by the area of the box, as class probabilities, which the loss must take; or, for a
    loss that does not, the losses of both targets are.

    Args:
        alpha: Draws the fraction of the area that stays from Beta(alpha, alpha).
        interpolate_loss: Mixes the losses of both targets, not the targets.
        uniform_sampling: Lets every pixel be cut equally often: centres may be outside of the
            image. Otherwise they are inside, and the middle is cut more often.
        input_key: Where in the batch the input is: a key, an index, or a (getter, setter) pair.
        target_key: The same for the target.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        interpolate_loss: bool = False,
        uniform_sampling: bool = False,
        input_key: Any = 0,
        target_key: Any = 1,
    ) -> None:
        super().__init__(interpolate_loss, input_key, target_key)
        self.alpha = alpha
        self.uniform_sampling = uniform_sampling
        self._bbox: Box = (0, 0, 0, 0)
        self._adjusted_lambda = 1.0
        self._is_dense = False  # whether targets are images of the inputs' size

    @property
    def _share(self) -> float:
        return 1 - self._adjusted_lambda

    def _mix_inputs(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self._is_dense = targets.ndim > 2 and targets.shape[-2:] == inputs.shape[-2:]
        if self._is_dense and self.interpolate_loss:
            raise ValueError(
                f"interpolate_loss=True cannot mix targets of shape {tuple(targets.shape)}, one a "
                "pixel: each pixel has one of the two, not a part of both. Set it to False"
            )
        self._indices = torch.randperm(inputs.shape[0], device=inputs.device)
        mixed, self._permuted_target, self._adjusted_lambda, self._bbox = cutmix_batch(
            inputs,
            targets,
            alpha=self.alpha,
            indices=self._indices,
            uniform_sampling=self.uniform_sampling,
        )
        return mixed

    def _mix_targets(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self._is_dense:
            return _paste(targets, self._indices, self._bbox)
        return super()._mix_targets(outputs, targets)
