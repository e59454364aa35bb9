"""WebVid (2104.00650): videos in the shards, or in files beside them."""

import os
import posixpath
from typing import Any

from streaming.base.dataset import StreamingDataset
from streaming.base.storage.download import CloudDownloader
from streaming.base.util import call_store

__all__ = ["StreamingInsideWebVid", "StreamingOutsideDTWebVid", "StreamingOutsideGIWebVid"]


class StreamingInsideWebVid(StreamingDataset):
    """WebVid with the videos in the shards. Arguments are those of :class:`StreamingDataset`."""


class StreamingOutsideGIWebVid(StreamingDataset):
    """WebVid with the videos in files of their own, which are fetched as samples are read.

    The column ``content_path`` names a sample's file; its bytes become the sample's ``content``.

    Args:
        extra_local: Folder where the files are kept.
        extra_remote: Folder or address where they are.
        kwargs: As for :class:`StreamingDataset`.
    """

    def __init__(
        self, *, extra_local: str | None = None, extra_remote: str | None = None, **kwargs: Any
    ) -> None:
        if extra_local is None:
            raise ValueError("`extra_local` is needed: the folder where the videos are, or go.")
        super().__init__(**kwargs)
        self.extra_local, self.extra_remote = extra_local, extra_remote
        self._downloader = CloudDownloader.get(extra_remote)

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, Any]:
        """Returns a sample with its video as ``content``.

        Args:
            sample_id: Number of the sample.
            retry: As for :class:`StreamingDataset`.

        Raises:
            ValueError: The sample's file would be outside ``extra_local``.
        """
        row = super().get_item(sample_id, retry)
        name = row["content_path"]
        if posixpath.normpath(name).startswith(("/", "../")):
            raise ValueError(
                f"Sample {sample_id} has content_path={name!r}, which leaves the folder of the "
                "videos. Write the shards with paths below it, relative and without '..'."
            )
        path = os.path.join(self.extra_local, name)
        remote = "" if self.extra_remote is None else posixpath.join(self.extra_remote, name)
        if not os.path.exists(path):
            call_store(
                lambda: self._downloader.download(remote, path, self.download_timeout),
                1 + self.download_retry,
            )
        with open(path, "rb") as file:
            return {**row, "content": file.read()}


class StreamingOutsideDTWebVid(StreamingOutsideGIWebVid):
    """The same: earlier versions meant to fetch its videos in the background."""
