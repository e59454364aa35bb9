"""Text data sets in shards: C4, the Pile, and English Wikipedia prepared for BERT."""

from streaming.text.datasets import StreamingC4, StreamingEnWiki, StreamingPile

__all__ = ["StreamingC4", "StreamingEnWiki", "StreamingPile"]
