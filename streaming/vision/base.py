"""shim: moved to :mod:`streaming.base.datasets.vision`."""

from streaming.base.datasets.vision import StreamingVisionDataset, to_tensor

__all__ = [
    "StreamingVisionDataset",
    "to_tensor",
]
