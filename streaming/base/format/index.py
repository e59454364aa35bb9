"""shim: the index lives in streaming.base.index."""

from streaming.base.index import get_index_basename

__all__ = ["get_index_basename"]
