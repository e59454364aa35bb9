"""Output folders that are either whole or not there, and the rows in them."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from composer.utils.file_helpers import is_uri
from llmfoundry.utils.exceptions import OutputFolderNotEmptyError
from llmfoundry.utils.stores import is_empty_in_store, uploaded_folder
from streaming.base.format.mds.writer import MDSWriter
from streaming.base.index import get_index_basename

__all__ = ["DONE_FILENAME", "check_output_folder", "finished_folder", "write_rows"]

PARTIAL_SUFFIX = ".unfinished"
DONE_FILENAME = ".text_to_mds_conversion_done"


def check_output_folder(output: str) -> None:
    """Refuses a folder, here or in a store, that holds anything.

    Raises:
        OutputFolderNotEmptyError: The folder is not empty.
    """
    if is_uri(output):
        is_free = is_empty_in_store(output)
    else:
        folder = Path(output)
        is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free:
        raise OutputFolderNotEmptyError(output)


@contextmanager
def finished_folder(output: str) -> Iterator[Path]:
    """Yields a folder to write to, which becomes ``output`` when the block ends well.

    A run that is killed leaves ``output`` untouched; what it left beside it is removed by the next
    run, which starts anew. To a store everything is uploaded at the end, the index last.
    """
    check_output_folder(output)
    if is_uri(output):
        with uploaded_folder(output, last=[get_index_basename(), DONE_FILENAME]) as folder:
            folder.mkdir()
            yield folder
        return
    folder = Path(output)
    partial = folder.with_name(folder.name + PARTIAL_SUFFIX)
    if partial.exists():
        shutil.rmtree(partial)
    partial.parent.mkdir(parents=True, exist_ok=True)
    partial.mkdir()
    try:
        yield partial
        if folder.is_dir():
            folder.rmdir()
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_rows(
    folder: Path, columns: dict[str, str], compression: str | None, rows: Iterable[dict[str, Any]]
) -> int:
    """Writes rows as MDS shards into a folder and returns how many they are."""
    count = 0
    with MDSWriter(columns=columns, out=str(folder), compression=compression) as out:
        for row in rows:
            out.write(row)
            count += 1
    return count
