"""What data preparation needs of files: fetched a few ahead, and groups of shards made one."""

import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from composer.utils.file_helpers import get_file, is_uri, parse_uri
from composer.utils.object_store.object_store import ObjectStore
from streaming.base.index import get_index_basename, parse_index, write_index

__all__ = ["DownloadingIterable", "local_paths", "merge_shard_groups", "with_id"]

AHEAD = 4


class DownloadingIterable:
    """Yields the local paths of files, in order, and fetches the next few from their store.

    Args:
        object_names: Names in the store; without a store addresses such as ``s3://bucket/name``, or
            paths, which are yielded as they are.
        output_folder: Where what is fetched is put, under its name; that of an address stands in a
            folder with its position.
        object_store: The store of the names.
    """

    def __init__(
        self,
        object_names: Iterable[str],
        output_folder: str,
        object_store: ObjectStore | None,
    ) -> None:
        self.object_names = object_names
        self.output_folder = output_folder
        self.object_store = object_store

    def __iter__(self) -> Iterator[str]:
        pool = ThreadPoolExecutor(AHEAD, "download")
        waiting: deque[Future[str]] = deque()
        try:
            for number, name in enumerate(self.object_names):
                waiting.append(pool.submit(self._fetched, name, number))
                if len(waiting) > AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _fetched(self, name: str, number: int) -> str:
        if self.object_store is None and not is_uri(name):
            return name
        # Addresses of two buckets may have one name.
        apart = "" if self.object_store else str(number)
        copy = os.path.join(self.output_folder, apart, parse_uri(name)[2].lstrip("/"))
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        get_file(name, copy, self.object_store, overwrite=True, progress_bar=False)
        return copy


def local_paths(names: list[str]) -> Iterator[tuple[str, str]]:
    """Yields the local path and the name of each file; a fetched one is there until the next."""
    with tempfile.TemporaryDirectory() as scratch:
        for name, path in zip(names, DownloadingIterable(names, scratch, None), strict=True):
            yield path, name
            if path != name:
                os.unlink(path)


def with_id(basename: str, shard_id: int) -> str:
    """The name of a shard's file with another number.

    >>> with_id("shard.00000.mds.zstd", 12)
    'shard.00012.mds.zstd'
    """
    return re.sub(r"\.\d+\.", f".{shard_id:05}.", basename, count=1)


def merge_shard_groups(root: str) -> None:
    """Makes one data set of those in the sub-folders of ``root``, in the order of their names.

    The shards move to ``root`` and are numbered anew; then comes the index, and the sub-folders go
    last. A call that was killed before the index was there is repeated as it was.

    Raises:
        FileExistsError: ``root`` has an index, or another file in a shard's place.
        FileNotFoundError: There are no sub-folders, or one lacks its index or a shard.
    """
    index = Path(root, get_index_basename())
    if index.exists():
        raise FileExistsError(
            f"{index} is there: {root} is one data set already. To merge more groups, put them "
            "into another folder."
        )
    groups = sorted(each for each in Path(root).iterdir() if each.is_dir())
    if not groups:
        raise FileNotFoundError(f"{root} has no sub-folders: nothing to merge.")
    shards: list[dict[str, Any]] = []
    moves: dict[Path, Path] = {}
    for group in groups:
        listed = group / get_index_basename()
        for record in parse_index(listed.read_bytes(), str(listed)):
            moves |= _renumber(record, len(shards), group, Path(root))
            shards.append(record)
    if len(set(moves.values())) < len(moves):
        raise FileExistsError(f"Shards of {root} would have one name: they have no numbers.")
    for source, target in moves.items():
        os.replace(source, target)
    write_index(root, shards)
    for group in groups:
        shutil.rmtree(group)


def _renumber(record: dict[str, Any], shard_id: int, group: Path, root: Path) -> dict[Path, Path]:
    """Renames the files in a shard's record, and returns those that have still to move, and to."""
    moves = {}
    for kind in ("data", "meta"):
        files = [record[key] for key in (f"raw_{kind}", f"zip_{kind}") if record.get(key)]
        found, source = not files, group
        for file in files:
            source = group / file["basename"]
            file["basename"] = with_id(source.name, shard_id)
            target = root / file["basename"]
            if _is_whole(source, file):
                if target.exists():
                    raise FileExistsError(
                        f"{target} is where {source} would go. Remove what is not of this data set."
                    )
                moves[source] = target
            found = found or source in moves or _is_whole(target, file)
        if not found:
            raise FileNotFoundError(
                f"{group} lists {source}, which is not there or not whole. Fetch or write it again "
                "and then merge; nothing was moved."
            )
    return moves


def _is_whole(path: Path, file: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == file["bytes"]
