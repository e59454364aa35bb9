"""Freezes layers one after the other, the earliest first."""

from composer.algorithms.layer_freezing.layer_freezing import LayerFreezing, freeze_layers

__all__ = ["LayerFreezing", "freeze_layers"]
