"""shim: moved to :mod:`streaming.base.datasets.image_classes`."""

from streaming.base.datasets.image_classes import convert_image_class_dataset

__all__ = [
    "convert_image_class_dataset",
]
