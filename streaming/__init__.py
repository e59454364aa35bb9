"""Streaming: datasets in shards, read in an exact order by any number of ranks and workers."""

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
