"""From a record of the index to the reader of its shard."""

from typing import Any

from streaming.base.format.json.reader import JSONReader
from streaming.base.format.mds.reader import MDSReader
from streaming.base.format.reader import Reader
from streaming.base.format.xsv.reader import CSVReader, TSVReader, XSVReader

_readers: dict[str, Any] = {
    "csv": CSVReader,
    "json": JSONReader,
    "mds": MDSReader,
    "tsv": TSVReader,
    "xsv": XSVReader,
}


def reader_from_json(dirname: str, split: str | None, obj: dict[str, Any]) -> Reader:
    """The reader for one shard of an index.

    Raises:
        ValueError: if its version or format is unknown, or a field is missing.
    """
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
        return reader.from_json(dirname, split, obj)
    except KeyError as error:
        raise ValueError(
            f"A shard record of the index in {dirname!r} lacks the field {error}."
        ) from None
