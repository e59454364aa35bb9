"""Constants of the models."""

__all__: list[str] = []

_MASTER_WEIGHTS_PRECISION = "float32"
"""The dtype in which models keep the weights that are trained."""
