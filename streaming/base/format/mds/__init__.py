"""The MDS format."""

from streaming.base.format.mds.encodings import (
    Encoding,
    get_mds_encoded_size,
    get_mds_encodings,
    is_mds_encoding,
    is_mds_encoding_safe,
    mds_decode,
    mds_encode,
)
from streaming.base.format.mds.images import JPEG, PIL, PNG
from streaming.base.format.mds.reader import MDSReader
from streaming.base.format.mds.writer import MDSWriter

__all__ = [
    "Encoding",
    "JPEG",
    "MDSReader",
    "MDSWriter",
    "PIL",
    "PNG",
    "get_mds_encoded_size",
    "get_mds_encodings",
    "is_mds_encoding",
    "is_mds_encoding_safe",
    "mds_decode",
    "mds_encode",
]
