"""Gated linear units: feed-forward networks with a gate."""

from composer.algorithms.gated_linear_units.gated_linear_unit_layers import BERTGatedFFOutput
from composer.algorithms.gated_linear_units.gated_linear_units import (
    GatedLinearUnits,
    apply_gated_linear_units,
)

__all__ = ["BERTGatedFFOutput", "GatedLinearUnits", "apply_gated_linear_units"]
