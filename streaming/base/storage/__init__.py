"""Files of datasets to and from stores, by the names of earlier versions."""

from streaming.base.storage.download import CloudDownloader
from streaming.base.storage.upload import CloudUploader

__all__ = ["CloudDownloader", "CloudUploader"]
