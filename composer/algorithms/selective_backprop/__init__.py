"""Selective backprop: trains on the samples that are hard."""

from composer.algorithms.selective_backprop.selective_backprop import (
    SelectiveBackprop,
    select_using_loss,
    should_selective_backprop,
)

__all__ = ["SelectiveBackprop", "select_using_loss", "should_selective_backprop"]
