"""MixUp: trains on weighted sums of two samples."""

from typing import Any

import numpy as np
import torch

from composer.algorithms.utils.sample_mixing import SampleMixing


def mixup_batch(
    input: torch.Tensor,
    target: torch.Tensor,
    mixing: float | None = None,
    alpha: float = 0.2,
    indices: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mixes each sample of a batch with another one (MixUp, Zhang et al., 2017).

    Args:
        input: The inputs, samples along axis 0.
        target: The targets, samples along axis 0.
        mixing: How much of a mixed sample is of the other one; drawn if None.
        alpha: Draws ``mixing`` from Beta(alpha, alpha), folded to at most one half; 0 does not mix.
        indices: The sample that each is mixed with; drawn if None.

    Returns:
        The mixed inputs, the other samples' targets, and ``mixing``.
    """
    if mixing is None:
        mixing = _gen_mixing_coef(alpha)
    if indices is None:
        indices = torch.randperm(input.shape[0], device=input.device)
    return (1 - mixing) * input + mixing * input[indices], target[indices], mixing


def _gen_mixing_coef(alpha: float) -> float:
    share = float(np.random.beta(alpha, alpha)) if alpha else 0.0
    return min(share, 1 - share)


class MixUp(SampleMixing):
    """Trains on weighted sums of two samples of a micro-batch (MixUp, Zhang et al., 2017).

    The targets are mixed in the same proportion, as class probabilities, which the loss must take;
    or, for a loss that does not, the losses of both targets are.

    Args:
        alpha: Draws the proportion from Beta(alpha, alpha): the larger, the more it mixes; 0 does
            not mix.
        interpolate_loss: Mixes the losses of both targets, not the targets.
        input_key: Where in the batch the input is: a key, an index, or a (getter, setter) pair.
        target_key: The same for the target.
    """

    def __init__(
        self,
        alpha: float = 0.2,
        interpolate_loss: bool = False,
        input_key: Any = 0,
        target_key: Any = 1,
    ) -> None:
        super().__init__(interpolate_loss, input_key, target_key)
        self.alpha = alpha
        self.mixing = 0.0
        """How much of a mixed sample is of the other one."""

    @property
    def indices(self) -> torch.Tensor:
        """The sample that each of the micro-batch is mixed with."""
        return self._indices

    @property
    def permuted_target(self) -> torch.Tensor:
        """The targets of these samples."""
        return self._permuted_target

    @property
    def _share(self) -> float:
        return self.mixing

    def _mix_inputs(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self._indices = torch.randperm(inputs.shape[0], device=inputs.device)
        mixed, self._permuted_target, self.mixing = mixup_batch(
            inputs, targets, alpha=self.alpha, indices=self._indices
        )
        return mixed
