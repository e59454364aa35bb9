"""The files that a writer makes, to where they belong."""

import os
import shutil
import tempfile

from streaming.base.index import get_index_basename
from streaming.base.store import Store, is_remote, open_store
from streaming.base.util import call_store

__all__ = ["CloudUploader"]


class CloudUploader:
    """A local folder whose files go to a store, if there is one.

    Args:
        out: Folder, its address in a store such as ``s3://bucket/folder``, or a pair (local folder,
            remote folder).
        keep_local: Whether local files stay when they are in the store.
        retry: How often an upload is tried.
        exist_ok: Empties the local folder first.

    Raises:
        ValueError: ``out`` is none of these, or there is no store for the address.
        FileExistsError: The local folder is not empty.
    """

    def __init__(
        self,
        out: str | tuple[str, str],
        keep_local: bool = False,
        retry: int = 2,
        exist_ok: bool = False,
    ) -> None:
        self.local, self.remote, self._store = _open_out(out)
        self.keep_local, self.retry = keep_local, retry
        _prepare_folder(self.local, exist_ok)

    @classmethod
    def get(
        cls,
        out: str | tuple[str, str],
        keep_local: bool = False,
        progress_bar: bool = False,
        retry: int = 2,
        exist_ok: bool = False,
    ) -> "CloudUploader":
        """Returns an uploader for a folder, an address or a pair of both.

        Args:
            out: As for the class.
            keep_local: Whether local files stay when they are in the store.
            progress_bar: Shows bytes; a writer's own option, and refused here.
            retry: How often an upload is tried.
            exist_ok: Empties the local folder first.
        """
        if progress_bar:
            raise ValueError("progress_bar=True: pass it to the writer, which counts the bytes.")
        return cls(out, keep_local, retry, exist_ok)

    def upload_file(self, filename: str) -> None:
        """Uploads a file of the local folder, and removes it here unless it is to stay.

        Args:
            filename: Its path below the local folder.
        """
        store = self._store
        if store is None:
            return
        path = os.path.join(self.local, filename)
        call_store(lambda: store.put(path, filename), self.retry, initial_backoff=1.0)
        if not self.keep_local:
            os.remove(path)

    def list_objects(self, prefix: str | None = None) -> list[str]:
        """Returns the names of the files where they belong, those that begin with ``prefix``."""
        store = self._store or open_store(self.local)
        return [name for name in store.list() if name.startswith(prefix or "")]

    def clear_local(self, local: str | None = None) -> None:
        """Removes a local folder whose files are all in the store.

        Args:
            local: The folder; by default the uploader's own.
        """
        if self._store is not None and not self.keep_local:
            shutil.rmtree(local or self.local, ignore_errors=True)


def _open_out(out: str | tuple[str, str]) -> tuple[str, str | None, Store | None]:
    """``out`` as (local folder, remote address or None, its store or None)."""
    if isinstance(out, str):
        if is_remote(out):
            return tempfile.mkdtemp(), out, open_store(out)
        local, remote = out.removeprefix("file://"), None
    elif len(out) == 2:
        local, remote = out
    else:
        raise ValueError(
            f"Invalid `out` argument. It is either a folder or a pair (local, remote), not {out!r}."
        )
    local = os.path.expanduser(local)
    return local, remote, open_store(remote) if remote else None


def _prepare_folder(local: str, exist_ok: bool) -> None:
    if os.path.isdir(local) and os.listdir(local):
        if not exist_ok:
            hint = ""
            if not os.path.exists(os.path.join(local, get_index_basename())):
                hint = " (it has no index, so a writer did not finish here)"
            raise FileExistsError(
                f"Directory is not empty: {local}{hint}. Choose another, or pass `exist_ok=True` "
                "to delete what is there."
            )
        shutil.rmtree(local)
    os.makedirs(local, exist_ok=True)
