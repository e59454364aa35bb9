"""Low-precision layernorm: in autocast's dtype, where torch would compute in fp32."""

from composer.algorithms.low_precision_layernorm.low_precision_layernorm import (
    LowPrecisionLayerNorm,
    LPLayerNorm,
    apply_low_precision_layernorm,
)

__all__ = ["LPLayerNorm", "LowPrecisionLayerNorm", "apply_low_precision_layernorm"]
