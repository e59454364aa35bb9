"""Output folders that are either whole or not there, and the rows in them."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from composer.utils.file_helpers import is_uri
from llmfoundry.utils.exceptions import OutputFolderNotEmptyError
from streaming.base.format.mds.writer import MDSWriter

__all__ = ["check_output_folder", "finished_folder", "write_rows"]

PARTIAL_SUFFIX = ".unfinished"


def check_output_folder(output: str) -> Path:
    """Refuses a folder that holds anything, and places that cannot be written.

    Raises:
        OutputFolderNotEmptyError: The folder is not empty.
        ValueError: The folder is a URI.
    """
    if is_uri(output):
        raise ValueError(
            f"Output {output!r} is remote, which data preparation does not write to in this "
            "version. Write to a local folder and copy it."
        )
    folder = Path(output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputFolderNotEmptyError(output)
    return folder


@contextmanager
def finished_folder(output: str) -> Iterator[Path]:
    """Yields a folder to write to, which becomes ``output`` when the block ends well.

    A run that is killed leaves ``output`` untouched; what it left beside it is removed by the next
    run, which starts anew.
    """
    folder = check_output_folder(output)
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
