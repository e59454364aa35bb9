"""shim: moved to :mod:`streaming.base.datasets.webvid`."""

from streaming.base.datasets.webvid import (
    StreamingInsideWebVid,
    StreamingOutsideDTWebVid,
    StreamingOutsideGIWebVid,
)

__all__ = [
    "StreamingInsideWebVid",
    "StreamingOutsideDTWebVid",
    "StreamingOutsideGIWebVid",
]
