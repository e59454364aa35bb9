"""CutOut: blacks out squares of the images."""

from composer.algorithms.cutout.cutout import CutOut, cutout_batch

__all__ = ["CutOut", "cutout_batch"]
