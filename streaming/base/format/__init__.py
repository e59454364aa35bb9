"""Shard formats: what writes them and what reads them."""

from streaming.base.format.json import JSONWriter
from streaming.base.format.mds import MDSWriter
from streaming.base.format.reader import FileInfo, Reader
from streaming.base.format.shards import reader_from_json
from streaming.base.format.xsv import CSVWriter, TSVWriter, XSVWriter
from streaming.base.index import get_index_basename

__all__ = [
    "CSVWriter",
    "FileInfo",
    "JSONWriter",
    "MDSWriter",
    "Reader",
    "TSVWriter",
    "XSVWriter",
    "get_index_basename",
    "reader_from_json",
]
