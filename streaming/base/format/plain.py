"""Datasets without an index: which files a path names, and an index made from the files."""

import json
import logging
import os
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from streaming.base.files import write_file
from streaming.base.format.jsonl import describe_lines
from streaming.base.format.parquet import describe_row_groups
from streaming.base.format.reader import Reader
from streaming.base.format.tokens import describe_tokens
from streaming.base.index import INDEX_VERSION, get_index_basename

log = logging.getLogger(__name__)

ROW_OPTIONS = ("max_seq_len", "token_encoding_type", "columns")
"""Settings of a stream that say what a sample is, where files do not."""

_KINDS: dict[str, tuple[str, Any]] = {
    ".bin": ("bin", describe_tokens),
    ".npy": ("bin", describe_tokens),
    ".parquet": ("parquet", describe_row_groups),
    ".jsonl": ("jsonl", describe_lines),
    ".ndjson": ("jsonl", describe_lines),
}
_KNOWN = "flat token files (.bin, .npy), Parquet (.parquet) and JSONL (.jsonl, .ndjson)"
_SPLIT = re.compile(r"(?:^|[._-])(train|validation|valid|val|dev|eval|test)(?=[._-])")


def split_pattern(path: str) -> tuple[str, str | None]:
    """Folder and name of a path whose last part names a file or has wildcards.

    Returns:
        The path itself and None if it is that of a folder.
    """
    folder, name = os.path.split(path)
    if "*" in folder or "?" in folder:
        raise ValueError(f"{path!r} has a wildcard in a folder: only file names may have one.")
    is_file = os.path.splitext(name)[1] in _KINDS and not os.path.isdir(path)
    if is_file or "*" in name or "?" in name or os.path.isfile(path):
        return folder or ".", name
    return path, None


def choose_files(names: Iterable[str], pattern: str | None, where: str) -> list[str]:
    """Those of a folder's files that are its dataset, in the order of their names.

    Raises:
        FileNotFoundError: There are none.
        ValueError: They are of several kinds, or of several splits.
    """
    present = sorted(name for name in names if not name.startswith((".", "_")))
    found = [name for name in present if pattern is None or fnmatchcase(name, pattern)]
    chosen = [name for name in found if os.path.splitext(name)[1] in _KINDS]
    if not chosen or (pattern is not None and chosen != found):
        wanted = "files" if pattern is None else f"files {pattern!r}"
        raise FileNotFoundError(
            f"{where} has no {get_index_basename()}, and no {wanted} that can be read without one, "
            f"which are {_KNOWN}. It holds {present[:10]}{' and more' * (len(present) > 10)}."
        )
    kinds = sorted({os.path.splitext(name)[1] for name in chosen})
    if len({_KINDS[kind][0] for kind in kinds}) > 1:
        raise ValueError(
            f"{where} holds files of several kinds, {kinds}. Name those that are the data, for "
            f"example {os.path.join(where, '*' + kinds[0])}."
        )
    splits = {found[1] for name in chosen if (found := _SPLIT.search(name))}
    if len(splits) > 1 and pattern is None:
        raise ValueError(
            f"{where} holds files of several splits, {chosen[:10]}. Name those of one, for example "
            f"{os.path.join(where, chosen[0])}."
        )
    return chosen


def files_in(folder: str, pattern: str | None) -> list[str]:
    """Those files of a local folder that are its dataset; see ``choose_files``."""
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"There is no folder {folder}.")
    names = [entry.name for entry in os.scandir(folder) if entry.is_file()]
    return choose_files(names, pattern, folder)


def plain_records(folder: str, names: Iterable[str]) -> list[dict[str, Any]]:
    """An index's records for files of a folder, by what they say themselves.

    Of flat files only the header is read, of Parquet files the footer; JSONL files are scanned.
    """
    records = [_record(folder, name) for name in names]
    for record in records:
        if "kinds" in record:  # What the first row of all says holds for every file (B74).
            first = {name: kind for name, kind in records[0]["kinds"].items() if kind != "null"}
            record["kinds"] = {**record["kinds"], **first}
    return records


def _record(folder: str, name: str) -> dict[str, Any]:
    path = os.path.join(folder, name)
    size = os.stat(path).st_size
    if not size:
        raise ValueError(f"{path} is empty. Remove it, or write it again.")
    kind, describe = _KINDS[os.path.splitext(name)[1]]
    return {
        "version": INDEX_VERSION,
        "format": kind,
        "compression": None,
        "hashes": [],
        "size_limit": None,
        "raw_data": {"basename": name, "bytes": size, "hashes": {}},
        "zip_data": None,
        **describe(path),
    }


def index_text(records: Iterable[dict[str, Any]]) -> bytes:
    """The index file with these records; it has no room for the places of lines."""
    shards = [{key: obj[key] for key in obj if key != "starts"} for obj in records]
    return json.dumps({"version": INDEX_VERSION, "shards": shards}, sort_keys=True).encode()


def matching(
    records: list[dict[str, Any]], pattern: str | None, filename: str
) -> list[dict[str, Any]]:
    """The records of an index whose files a pattern names."""
    if pattern is None:
        return records
    found = [obj for obj in records if fnmatchcase(obj["raw_data"]["basename"], pattern)]
    if not found:
        raise FileNotFoundError(f"The index {filename} names no file {pattern!r}.")
    return found


def index_files(folder: str, pattern: str | None = None) -> str:
    """Writes the index of a folder of flat token, Parquet or JSONL files, and returns its path.

    A local folder is read without one. Put beside the files in a store, it lets a run begin without
    fetching them all to see what is in them.

    Args:
        folder: The folder, on this machine.
        pattern: Wildcard that chooses among its files.
    """
    filename = os.path.join(folder, get_index_basename())
    write_file(filename, index_text(plain_records(folder, files_in(folder, pattern))))
    return filename


def check_shards(
    shards: Sequence[Reader], own_options: Iterable[str], filename: str, should_report: bool
) -> None:
    """Refuses a stream without samples, and settings of it that its formats do not know.

    Args:
        shards: Its shards.
        own_options: Names of the settings that it has been given by itself.
        filename: Its index.
        should_report: Whether to say how many tokens fill no row.
    """
    left_out = sum(shard.left_out for shard in shards)
    if not sum(map(len, shards)):
        hint = f" Its {left_out} tokens fill no row of max_seq_len." if left_out else ""
        raise RuntimeError(
            f"Stream contains no samples: {filename}.{hint} Leave it out, or write it again."
        )
    for name in own_options:
        if not any(name in shard.options for shard in shards):
            raise ValueError(
                f"`{name}` has no effect on the stream of {filename}, whose samples are of their "
                "own kind. Leave it out."
            )
    if left_out and should_report:
        log.warning(
            "%d tokens at the ends of %d files of %s fill no row and are left out.",
            left_out,
            len(shards),
            os.path.dirname(filename),
        )
