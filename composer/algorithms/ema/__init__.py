"""Exponential moving averages of the weights."""

from composer.algorithms.ema.ema import EMA, EMAParameters, compute_ema

__all__ = ["EMA", "EMAParameters", "compute_ema"]
