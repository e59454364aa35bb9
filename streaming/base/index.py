"""The index file of a dataset: its name, how it is written, read and merged."""

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any

from streaming.base.files import write_file
from streaming.base.store import is_remote, open_store

INDEX_VERSION = 2

FILE_KEYS = ("raw_data", "zip_data", "raw_meta", "zip_meta")
"""Where a shard's record says something about a file."""


def get_index_basename() -> str:
    """Name of the index file in every dataset folder."""
    return "index.json"


def parse_index(text: bytes, filename: str) -> list[dict[str, Any]]:
    """The shard records of an index.

    Raises:
        json.JSONDecodeError: if it is empty or no JSON.
        ValueError: if it is of another version or no index.
    """
    try:
        obj = json.loads(text)
    except json.JSONDecodeError as error:
        message = (
            f"Index file at {filename} is empty or corrupted: {error.msg}. Delete it to fetch it "
            "again, or write the dataset again"
        )
        raise json.JSONDecodeError(message, error.doc, error.pos) from None
    except UnicodeDecodeError as error:
        message = f"Index file at {filename} is empty or corrupted: it is not text ({error})"
        raise json.JSONDecodeError(message, "", 0) from None
    if not isinstance(obj, dict) or not isinstance(obj.get("shards"), list):
        raise ValueError(f"Index file at {filename} has no list of shards.")
    version = obj.get("version")
    if version != INDEX_VERSION:
        raise ValueError(
            f"Unsupported streaming data version: {version}. Expected version {INDEX_VERSION}. "
            f"Index file at {filename}: write the dataset again with this or a later MDSWriter."
        )
    return obj["shards"]


def write_index(dirname: str, shards: Sequence[dict[str, Any]], sort_keys: bool = True) -> str:
    """Writes the index of a dataset folder in one step, and returns its path."""
    filename = os.path.join(dirname, get_index_basename())
    obj = {"version": INDEX_VERSION, "shards": list(shards)}
    write_file(filename, json.dumps(obj, sort_keys=sort_keys).encode("utf-8"))
    return filename


def merge_index(*args: Any, **kwargs: Any) -> str | None:
    """Makes one dataset of several written side by side, without moving a shard.

    Call it as ``merge_index(index_file_urls, out, keep_local=True, download_timeout=60)`` with the
    index files of folders below ``out``, or as ``merge_index(out, keep_local=True,
    download_timeout=60)`` to find all of them; ``out`` is a folder, or a pair (local, remote).
    Folders may be nested. An item of the list may be a pair (local, remote), of which the local one
    is used where it exists; items and ``out`` may be addresses in stores. Shards stand in the order
    of the list, or of the folders' paths.

    Args:
        args: As above.
        kwargs: As above, by name.

    Returns:
        Path of the merged index; None if it was only kept remotely.
    """
    names = ("index_file_urls", "out", "keep_local", "download_timeout")
    if "index_file_urls" not in kwargs and not _starts_with_urls(args):
        names = names[1:]
    bound = {**dict(zip(names, args, strict=False)), **kwargs}
    is_odd = len(args) + len(kwargs) != len(bound) or bound.keys() - set(names)
    if is_odd or "out" not in bound:
        raise ValueError(f"Invalid arguments to merge_index: {args}, {kwargs}.")
    keep_local, timeout = bound.get("keep_local", True), bound.get("download_timeout", 60)
    local, remote = _split_out(bound["out"])
    with tempfile.TemporaryDirectory() as scratch:
        if not local:
            local, keep_local = scratch, False
        urls = bound.get("index_file_urls")
        if urls is None:
            urls = _find_indexes(local, remote)
        urls = list(dict.fromkeys(map(_pick, urls)))
        return _merge(urls, local, remote, keep_local, timeout)


def _starts_with_urls(args: tuple[Any, ...]) -> bool:
    """Tells a list of index files from ``out``, which may be a pair."""
    if not args or isinstance(args[0], str):
        return False
    return not isinstance(args[0], tuple) or (len(args) > 1 and not isinstance(args[1], bool))


def _split_out(out: Any) -> tuple[str, str | None]:
    """``out`` as (local folder or nothing, remote folder or None)."""
    if isinstance(out, str):
        return ("", out.rstrip("/")) if is_remote(out) else (out, None)
    if isinstance(out, tuple) and len(out) == 2:
        return out
    raise ValueError(f"Invalid arguments to merge_index: `out` is {out!r}, not a folder or a pair.")


def _pick(url: Any) -> str:
    """The path or address behind an item of the list."""
    candidates = [url] if isinstance(url, str) else list(url)
    for candidate in candidates:
        path = candidate.removeprefix("file://") if candidate else ""
        if path and not is_remote(path) and os.path.exists(path):
            return path
    if candidates and candidates[-1] and is_remote(candidates[-1]):
        return candidates[-1]
    raise FileNotFoundError(f"Check data availability! No index file at {url!r}.")


def _find_indexes(root: str, remote: str | None) -> Iterable[str]:
    """All index files below a folder, or else below the remote one, but not its own, in order."""
    found = []
    for folder, _, files in os.walk(root):
        if folder != root and get_index_basename() in files:
            found.append(os.path.join(folder, get_index_basename()))
    if not found and remote is not None:
        names = open_store(remote).list()
        found = [f"{remote}/{name}" for name in names if name.endswith(f"/{get_index_basename()}")]
    if not found:
        raise FileNotFoundError(
            f"No {get_index_basename()} below {remote or root!r}: nothing to merge."
        )
    return sorted(found)


def _read_index(url: str, root: str, timeout: float) -> tuple[str, list[dict[str, Any]]]:
    """The folder of an index file, relative to a root, and its records."""
    folder, name = url.rpartition("/")[::2] if is_remote(url) else os.path.split(url)
    out = BytesIO()
    open_store(folder).fetch(name, out, timeout)
    if is_remote(url):
        inner = folder.removeprefix(f"{root}/") if folder.startswith(f"{root}/") else ".."
    else:
        inner = os.path.relpath(os.path.abspath(folder), os.path.abspath(root))
    if inner.startswith(".."):
        # Copies elsewhere, as in a download folder: only the last folder's name can be meant.
        inner = os.path.basename(os.path.abspath(folder))
    return inner, parse_index(out.getvalue(), url)


def _merge(
    urls: Iterable[str], local: str, remote: str | None, keep_local: bool, timeout: float
) -> str | None:
    """Writes the merged index, with each file name relative to the merged folder."""
    shards = []
    for url in urls:
        root = (remote or local) if is_remote(url) else local
        folder, records = _read_index(url, root, timeout)
        for record in records:
            for key in FILE_KEYS:
                if record.get(key):
                    name = PurePosixPath(folder, record[key]["basename"])
                    record[key] = {**record[key], "basename": str(name)}
            shards.append(record)
    os.makedirs(local, exist_ok=True)
    filename = write_index(local, shards, sort_keys=False)
    if remote is None:
        return filename
    open_store(remote).put(filename, get_index_basename())
    if not keep_local:
        os.remove(filename)
        return None
    return filename
