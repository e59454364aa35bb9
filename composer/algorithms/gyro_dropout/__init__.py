"""Gyro dropout: few masks, each for a while, so that subnetworks are learned well."""

from composer.algorithms.gyro_dropout.gyro_dropout import (
    GyroDropout,
    GyroDropoutLayer,
    apply_gyro_dropout,
)

__all__ = ["GyroDropout", "GyroDropoutLayer", "apply_gyro_dropout"]
