"""Turns a folder of shards into a one-file checkpoint, and a file into a folder, without a run.

``python -m composer.checkpoint.convert SOURCE DESTINATION``: the one becomes the other. A run loads
either, with any number of processes; this is for tools that know one form only.
"""

import argparse
import os
import tempfile
from collections.abc import Sequence

from composer.checkpoint.download import Source, download_object_or_file, has_shards
from composer.checkpoint.monolithic import (
    opened_plain,
    torch_load_with_validation,
    write_checkpoint_file,
)
from composer.checkpoint.sharded import FileSystemReaderWithValidation
from composer.checkpoint.sharded_run import DistCPObjectStoreReader, read_nested, writer_of_run
from composer.utils.file_helpers import is_uri

__all__ = ["convert_checkpoint", "main"]


def convert_checkpoint(source: str, destination: str, overwrite: bool = False) -> str:
    """Writes a checkpoint in its other form, and returns the path. One process calls it.

    The content stays as it is. It passes through this host's memory, whole.

    Args:
        source: A folder of shards or a file, here or in an object store.
        destination: The file or folder to write. A file's ending says its form.
        overwrite: Whether to replace what is there.

    Raises:
        FileNotFoundError: If there is no checkpoint, or it is not complete.
        FileExistsError: If something is there that would be replaced.
        CheckpointContentError: If it names something that reading it must not run.
    """
    if os.path.lexists(destination) and not overwrite:
        raise FileExistsError(f"{destination} exists; choose another name, or set overwrite.")
    folder, store = has_shards(source)
    with tempfile.TemporaryDirectory(prefix="composer_convert_") as scratch:
        if folder is not None:
            return _to_file(folder, store, destination, scratch)
        path = source
        if is_uri(source):
            path = os.path.join(scratch, os.path.basename(source))
            download_object_or_file(source, path, None)
        with opened_plain(path) as plain:
            content = torch_load_with_validation(plain)
        return writer_of_run(content, destination).write()


def _to_file(folder: str, store: Source, destination: str, scratch: str) -> str:
    if store is None:
        content = read_nested(FileSystemReaderWithValidation(folder))
    else:
        content = read_nested(DistCPObjectStoreReader(folder, scratch, store))
    return write_checkpoint_file(content, destination)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        prog="python -m composer.checkpoint.convert", description=convert_checkpoint.__doc__
    )
    parser.add_argument("source", help="a folder of shards, or a file")
    parser.add_argument("destination", help="the file or folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    given = parser.parse_args(arguments)
    print(convert_checkpoint(given.source, given.destination, given.overwrite))


if __name__ == "__main__":
    main()
