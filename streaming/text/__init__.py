"""shim: moved to :mod:`streaming.base.datasets.text`."""

from streaming.base.datasets.text import StreamingC4, StreamingEnWiki, StreamingPile

__all__ = [
    "StreamingC4",
    "StreamingEnWiki",
    "StreamingPile",
]
