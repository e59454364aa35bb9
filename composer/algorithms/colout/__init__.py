"""ColOut: leaves out rows and columns of the images."""

from composer.algorithms.colout.colout import ColOut, ColOutTransform, colout_batch

__all__ = ["ColOut", "ColOutTransform", "colout_batch"]
