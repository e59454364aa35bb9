"""Low-precision groupnorm: in autocast's dtype, where torch would compute in fp32."""

from collections.abc import Sequence

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


class LPGroupNorm(torch.nn.GroupNorm):
    """A `torch.nn.GroupNorm` that under autocast computes in autocast's dtype."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Returns the normed input, in autocast's dtype if there is one."""
        dtype = autocast_dtype(input.device)
        if dtype is None:
            return super().forward(input)
        with torch.autocast(input.device.type, enabled=False):
            return F.group_norm(
                input.to(dtype),
                self.num_groups,
                cast(self.weight, dtype),
                cast(self.bias, dtype),
                self.eps,
            )


def apply_low_precision_groupnorm(
    model: torch.nn.Module,
    precision: Precision | str | None = None,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
    on_no_match: OnNoMatch = "raise",
) -> torch.nn.Module:
    """Turns every GroupNorm into an `LPGroupNorm`; changes and returns the model.

    The layers stay the same objects, so optimizers need no change.

    Args:
        model: The model.
        precision: The precision of the training: only amp_fp16 and amp_bf16 have a lower one.
        optimizers: Accepted for the sake of a common signature.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no GroupNorm.

    Raises:
        NoMatchError: If there is no GroupNorm.
    """
    del optimizers
    return lower_precision(model, torch.nn.GroupNorm, LPGroupNorm, precision, on_no_match)


class LowPrecisionGroupNorm(LowPrecisionNorm):
    """Computes GroupNorm in the lower precision of mixed-precision training, which is faster.

    Args:
        apply_at: INIT, BEFORE_LOAD or AFTER_LOAD, or its name.
        on_no_match: ``"raise"`` or ``"warn"`` if there is no GroupNorm.

    Raises:
        ValueError: For another event.
    """

    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Changes the layers of the model."""
        apply_low_precision_groupnorm(
            state.model, state.precision, state.optimizers, self.on_no_match
        )
        return None
