"""From a record of the index to the reader of its shard."""

from pathlib import PurePosixPath
from typing import Any

from streaming.base.format.json.reader import JSONReader
from streaming.base.format.jsonl import JSONLReader
from streaming.base.format.mds.reader import MDSReader
from streaming.base.format.parquet import ParquetReader
from streaming.base.format.reader import FileInfo, Reader
from streaming.base.format.tokens import TokensReader
from streaming.base.format.xsv.reader import CSVReader, TSVReader, XSVReader

_readers: dict[str, Any] = {
    "bin": TokensReader,
    "csv": CSVReader,
    "json": JSONReader,
    "jsonl": JSONLReader,
    "mds": MDSReader,
    "parquet": ParquetReader,
    "tsv": TSVReader,
    "xsv": XSVReader,
}


def reader_from_json(dirname: str, split: str | None, obj: dict[str, Any]) -> Reader:
    """The reader for one shard of an index.

    Raises:
        ValueError: if its version or format is unknown, a field is missing or of another type, or a
            file is named that is not below the folder.
    """
    if not isinstance(obj, dict):
        raise ValueError(f"A shard's record must be an object, but is {obj!r}.")
    if obj.get("version") != 2:
        raise ValueError(
            f"Unsupported streaming data version: {obj.get('version')}. Expected version 2."
        )
    reader = _readers.get(obj.get("format", ""))
    if reader is None:
        raise ValueError(
            f"Unsupported shard format: {obj.get('format')!r}. Known: {sorted(_readers)}."
        )
    try:
        shard = reader.from_json(dirname, split, obj)
    except KeyError as error:
        raise ValueError(
            f"A shard record of the index in {dirname!r} lacks the field {error}."
        ) from None
    except TypeError as error:
        raise ValueError(f"A field of a shard's record is of another type: {error}.") from None
    for pair in shard.file_pairs:
        for info in (pair.raw, pair.zip):
            if info is not None:
                check_file(info)
    return shard


def check_file(info: FileInfo) -> None:
    """Refuses names by which a foreign index could have other files read and overwritten."""
    path = PurePosixPath(info.basename)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"A shard's file is named {info.basename!r}, which is not in its folder.")
    if not isinstance(info.bytes, int) or info.bytes < 0:
        raise ValueError(f"A shard's file {info.basename} cannot have {info.bytes!r} bytes.")
