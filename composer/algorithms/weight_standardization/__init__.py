"""Weight standardization: convolutions with weights of mean 0 and variance 1."""

from composer.algorithms.weight_standardization.weight_standardization import (
    WeightStandardization,
    apply_weight_standardization,
)

__all__ = ["WeightStandardization", "apply_weight_standardization"]
