"""Low-precision layernorm: in autocast's dtype, where torch would compute in fp32."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.optim import Optimizer

from composer.algorithms.utils.low_precision import (
    LowPrecisionNorm,
    autocast_dtype,
    cast,
    lower_precision,
)
from composer.algorithms.utils.surgery import OnNoMatch
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.precision import Precision
from composer.core.state import State


class LPLayerNorm(torch.nn.LayerNorm):
    """A `torch.nn.LayerNorm` that under autocast computes in autocast's dtype.

    Args:
        normalized_shape: As in `torch.nn.LayerNorm`.
        eps: As in `torch.nn.LayerNorm`.
        elementwise_affine: As in `torch.nn.LayerNorm`.
        device: As in `torch.nn.LayerNorm`.
        dtype: As in `torch.nn.LayerNorm`.
        bias: As in `torch.nn.LayerNorm`.
    """

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-05,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the normed input, in autocast's dtype if there is one."""
        dtype = autocast_dtype(input.device)
        if dtype is None:
            return super().forward(input)
        with torch.autocast(input.device.type, enabled=False):
            return F.layer_norm(
                input.to(dtype),
                self.normalized_shape,
                cast(self.weight, dtype),
                cast(self.bias, dtype),
                self.eps,
            )


def apply_low_precision_layernorm(
    model: torch.nn.Module,
    precision: Precision | str | None = None,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    on_no_match: OnNoMatch = "raise",
) -> torch.nn.Module:
    """Turns every LayerNorm into an `LPLayerNorm`; changes and returns the model.

    The layers stay the same objects, so optimizers need no change.

    Args:
        model: The model.
        precision: The precision of the training: only amp_fp16 and amp_bf16 have a lower one.
        optimizers: Accepted for the sake of a common signature.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no LayerNorm.

    Raises:
        NoMatchError: If there is no LayerNorm.
    """
    del optimizers
    return lower_precision(model, torch.nn.LayerNorm, LPLayerNorm, precision, on_no_match)


class LowPrecisionLayerNorm(LowPrecisionNorm):
    """Computes LayerNorm in the lower precision of mixed-precision training, which is faster.

    Args:
        apply_at: INIT, BEFORE_LOAD or AFTER_LOAD, or its name.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no LayerNorm.

    Raises:
        ValueError: For another event.
    """

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the layers of the model."""
        apply_low_precision_layernorm(
            state.model, state.precision, state.optimizers, self.on_no_match
        )
        return None
