"""Image data sets in shards: classification, segmentation and detection."""

from streaming.vision.base import StreamingVisionDataset
from streaming.vision.datasets import (
    StreamingADE20K,
    StreamingCIFAR10,
    StreamingCOCO,
    StreamingImageNet,
)

__all__ = [
    "StreamingADE20K",
    "StreamingCIFAR10",
    "StreamingCOCO",
    "StreamingImageNet",
    "StreamingVisionDataset",
]
