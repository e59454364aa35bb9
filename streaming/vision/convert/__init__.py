"""Image data sets into shards."""

from streaming.vision.convert.base import convert_image_class_dataset

__all__ = ["convert_image_class_dataset"]
