"""Streaming: datasets in shards, read in an exact order by any number of ranks and workers."""

import importlib
from types import ModuleType

from streaming._version import __version__
from streaming.base.dataloader import StreamingDataLoader
from streaming.base.dataset import StreamingDataset
from streaming.base.format.json.writer import JSONWriter
from streaming.base.format.mds.writer import MDSWriter
from streaming.base.format.xsv.writer import CSVWriter, TSVWriter, XSVWriter
from streaming.base.local import LocalDataset
from streaming.base.stream import Stream

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "XSVWriter",
    "__version__",
]

_LAZY = ("multimodal", "text", "vision")


def __getattr__(name: str) -> ModuleType:
    if name in _LAZY:
        return importlib.import_module(f"streaming.{name}")
    raise AttributeError(f"module 'streaming' has no attribute {name!r}")
