"""Single files from any store to this machine."""

import os

from streaming.base.constant import DEFAULT_TIMEOUT
from streaming.base.files import make_once
from streaming.base.store import open_store

__all__ = ["CloudDownloader"]


class CloudDownloader:
    """Downloads files of one kind of store, each of which is whole or not there."""

    @classmethod
    def get(cls, remote_dir: str | None = None) -> "CloudDownloader":
        """Returns a downloader for an address, or for paths.

        Raises:
            ValueError: There is no store for the address.
        """
        if remote_dir:
            open_store(remote_dir)
        return cls()

    def download(self, remote: str, local: str, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Downloads a file unless it is there.

        Args:
            remote: Its address, or its path.
            local: Where it goes.
            timeout: Seconds.
        """
        self._make(remote, local, timeout, is_wanted=False)

    def direct_download(self, remote: str, local: str, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Downloads a file, also over one that is there.

        Args:
            remote: Its address, or its path.
            local: Where it goes.
            timeout: Seconds.
        """
        self._make(remote, local, timeout, is_wanted=True)

    def _make(self, remote: str, local: str, timeout: float, is_wanted: bool) -> None:
        if not remote:
            raise FileNotFoundError(
                f"{local} is not here, and there is no remote to fetch it from."
            )
        folder, _, name = remote.rpartition("/")
        store = open_store(folder or ("/" if remote.startswith("/") else "."))
        make_once(
            local,
            lambda: not is_wanted and os.path.exists(local),
            lambda out: store.fetch(name, out, timeout),
        )

    def clean_up(self) -> None:
        """Does nothing: no connection and no file is left open."""
