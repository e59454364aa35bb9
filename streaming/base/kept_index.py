"""The index of a source as it is kept in a local folder, and whose files lie beside it."""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

from streaming.base.distributed import get_local_world_size
from streaming.base.files import (
    TMP_SUFFIX,
    FolderUse,
    disk_full_named,
    make_once,
    remove_abandoned,
    remove_file,
)
from streaming.base.format.reader import FileInfo
from streaming.base.format.shards import check_file
from streaming.base.index import FILE_KEYS, get_index_basename, parse_index

log = logging.getLogger(__name__)

_NEW_SECONDS = 60
_MARK = re.compile(rb', "source": ("(?:[^"\\]|\\.)*")\}$')
_LONGEST_MARK = 8192

_began = time.time()
_renewed: dict[str, int] = {}
"""When this process has fetched an index, by the file's own time."""


class _TakenError(ValueError):
    """A folder holds what must not go: it is read by others, or may be the only copy."""


class KeptIndex:
    """An index that was fetched, with a mark of where from, in a folder of this machine.

    Args:
        folder: The folder.
        source: Where its files come from.
    """

    def __init__(self, folder: str, source: str) -> None:
        self.filename = os.path.join(folder, get_index_basename())
        self._folder = folder
        self._source = source
        self._use: FolderUse | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_use": None}  # Whoever made the dataset holds it.

    def renew(self, fetch: Callable[[], bytes]) -> None:
        """Fetches the index, unless one of the node's other ranks has just done so.

        Where that cannot be done, a copy that is here and of the same source will do.

        Args:
            fetch: Gets it from the source.

        Raises:
            ValueError: if the folder holds other data that a running process reads, or that was not
                fetched; or if the index names files that are not below the folder.
        """

        def make(out: BinaryIO) -> None:
            out.write(self._marked(fetch()))

        try:
            with disk_full_named(self.filename):
                self._use = FolderUse(self._folder)
                if make_once(self.filename, self._is_renewed, make):
                    _renewed[self.filename] = os.stat(self.filename).st_mtime_ns
                    for name in os.listdir(self._folder):
                        if name.endswith(TMP_SUFFIX):
                            remove_abandoned(os.path.join(self._folder, name))
        except _TakenError:
            raise
        except (FileExistsError, NotADirectoryError) as error:
            raise NotADirectoryError(
                f"`local` must be a folder, but {self._folder} is, or is below, a file."
            ) from error
        except (OSError, ValueError) as error:
            kept = self._read()
            if kept is None or not self._is_own(kept):
                raise
            # Work on without the network, or in a folder that is full.
            log.warning("%s: the copy in %s is used as it is.", error, self._folder)

    def _marked(self, fetched: bytes) -> bytes:
        mark = f', "source": {json.dumps(self._source)}}}'.encode()
        fetched = fetched.rstrip()
        return fetched if fetched.endswith(mark) else fetched[:-1] + mark

    def _is_renewed(self) -> bool:
        try:
            with open(self.filename, "rb") as file:
                written = os.fstat(file.fileno()).st_mtime_ns
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LONGEST_MARK))
                end = file.read()
        except FileNotFoundError:
            return False
        now = time.time()
        began = _began if get_local_world_size() == 1 else 0.0  # Fellow ranks may begin any time.
        is_new = max(began, now - _NEW_SECONDS) < written / 1e9 <= now
        return is_new and _renewed.get(self.filename) != written and _source_of(end) == self._source

    def _read(self) -> bytes | None:
        """The index as it is here, if it is whole."""
        try:
            with open(self.filename, "rb") as file:
                text = file.read()
            _files_of(parse_index(text, self.filename), self.filename)
        except (OSError, ValueError):
            return None
        return text

    def _check_fetched(self, kept: bytes) -> None:
        """Refuses to take the place of a dataset that may have been written here."""
        if _source_of(kept) is None:
            raise _TakenError(
                f"{self._folder} holds a dataset that was not fetched from {self._source}. Provide "
                "another `local`, or empty it."
            )

    def _is_own(self, kept: bytes) -> bool:
        """Whether an index that is here is of the source, as far as it says."""
        return _source_of(kept) in (None, self._source)

    def if_of(self, names: Sequence[str]) -> bytes | None:
        """The index as it is here, if it is of the source and of these files.

        One of another source is given up, with the files that it names.
        """
        kept = self._read()
        if kept is None:
            return None
        files = _files_of(parse_index(kept, self.filename), self.filename)
        if not self._is_own(kept):
            self._remove(files)
            return None
        if list(files) == names:
            return kept
        self._check_fetched(kept)
        return None

    def remove_foreign(self, fetched: bytes) -> None:
        """Removes the files that a new index names and that are here of another dataset.

        Only equal checksums tell that they are the same: the files of two sets of tokens may well
        be of the same sizes.
        """
        if os.path.exists(self.filename):
            with open(self.filename, "rb") as file:
                if file.read() == self._marked(fetched):
                    return
        where = f"{self._source}/{get_index_basename()}"
        records = parse_index(fetched, where)
        files = _files_of(records, where)
        kept = self._read()
        old = [] if kept is None else parse_index(kept, self.filename)
        if kept is not None and self._is_own(kept) and old == records:
            return
        if kept is not None:
            self._check_fetched(kept)
        known = _files_of(old, self.filename)
        foreign = [
            name
            for name, info in files.items()
            if not info.get("hashes") or known.get(name) != info
        ]
        self._remove(foreign, is_known=kept is not None)

    def _remove(self, names: Sequence[str] | dict[str, Any], is_known: bool = True) -> None:
        if names and is_known and self._use is not None and self._use.is_shared():
            raise _TakenError(
                f"Reused local directory: {self._folder} holds the data that another dataset is "
                f"reading, which is not (or no longer) that of {self._source}. Provide a different "
                "one, or let the other end first."
            )
        for name in names:
            remove_file(os.path.join(self._folder, name))


def _source_of(index: bytes) -> str | None:
    found = _MARK.search(index)
    return json.loads(found[1]) if found else None


def _files_of(records: Sequence[Any], filename: str) -> dict[str, dict[str, Any]]:
    """What an index says about each file, by its name, which is one below the folder."""
    files = {}
    for number, obj in enumerate(records):
        try:
            for info in filter(None, map(obj.get, FILE_KEYS)):
                check_file(FileInfo(info["basename"], info["bytes"]))
                files[info["basename"]] = info
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"Shard {number} of {filename} does not say what its files are: {error!r}. Write "
                "the dataset again."
            ) from error
    return files
