"""shim: moved to :mod:`streaming.base.datasets.vision`."""

from streaming.base.datasets.vision import (
    StreamingADE20K,
    StreamingCIFAR10,
    StreamingCOCO,
    StreamingImageNet,
    StreamingVisionDataset,
)

__all__ = [
    "StreamingADE20K",
    "StreamingCIFAR10",
    "StreamingCOCO",
    "StreamingImageNet",
    "StreamingVisionDataset",
]
