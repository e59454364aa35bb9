"""Low-precision groupnorm: in autocast's dtype, where torch would compute in fp32."""

from composer.algorithms.low_precision_groupnorm.low_precision_groupnorm import (
    LowPrecisionGroupNorm,
    LPGroupNorm,
    apply_low_precision_groupnorm,
)

__all__ = ["LPGroupNorm", "LowPrecisionGroupNorm", "apply_low_precision_groupnorm"]
