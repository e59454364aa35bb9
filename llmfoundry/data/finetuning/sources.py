"""Where the rows of fine-tuning come from: the hub, files here, or files in a store."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from composer.utils.file_helpers import get_file, is_uri
from llmfoundry.data.finetuning.node_order import Share
from llmfoundry.utils.exceptions import (
    FinetuningFileNotFoundError,
    InvalidDatasetError,
    InvalidFileExtensionError,
    MisconfiguredHfDatasetError,
)

__all__ = ["SUPPORTED_EXTENSIONS", "load_rows"]

SUPPORTED_EXTENSIONS = [".csv", ".json", ".jsonl", ".parquet"]
BUILDERS = ("csv", "json", "parquet")
BLOCK_BYTES = 2**20
HARMLESS = (".gitignore", ".lock", ".metadata")

Arguments = dict[str, Any]


def load_rows(
    name: str,
    split: str,
    safe_load: bool = False,
    hf_kwargs: Arguments | None = None,
    share: Share = lambda make: make(),
) -> Any:
    """Loads the rows of a split as a ``datasets.Dataset``.

    Args:
        name: A hub name, a folder or file, ``json``, ``csv`` or ``parquet`` with ``data_files``, or
            a remote folder that holds ``{split}`` with one of the supported extensions.
        split: The split; a file has the split ``train``.
        safe_load: Takes only files with a supported extension.
        hf_kwargs: Arguments of ``datasets.load_dataset``.
        share: Fetches a remote file once for all ranks of a node.

    Raises:
        MisconfiguredHfDatasetError: The files cannot be read as one table.
        InvalidDatasetError: They hold nothing.
        FinetuningFileNotFoundError: The remote folder has no such file.
        InvalidFileExtensionError: ``safe_load``, and there are files of another kind.
    """
    import datasets
    import pyarrow
    from datasets import config
    from datasets.exceptions import DatasetGenerationError

    source, part, kwargs = _resolved(name, split, safe_load, hf_kwargs or {}, share)
    try:
        return datasets.load_dataset(source, split=part, **kwargs)
    except DatasetGenerationError as error:
        reason = _json_fault(source, part, kwargs) or f"{error.__cause__ or error}"
        raise MisconfiguredHfDatasetError(name, split, reason) from error
    except (StopIteration, OSError, ValueError) as error:
        # Arrow says of a torn file what it met where, but not in which one.
        if isinstance(error, pyarrow.ArrowInvalid) or type(error) is OSError and not error.errno:
            cache = kwargs.get("cache_dir") or config.HF_DATASETS_CACHE
            raise MisconfiguredHfDatasetError(
                name, split, f"a file of its cache is torn: remove its folder in {cache}. {error}"
            ) from error
        if isinstance(error, OSError):
            raise
        # How it says that there are no rows.
        if isinstance(error, ValueError) and "corresponds to no data" not in str(error):
            raise
        raise InvalidDatasetError(f"{name}, split {split}, holds no row.") from error


def _resolved(
    name: str, split: str, safe_load: bool, kwargs: Arguments, share: Share
) -> tuple[str, str, Arguments]:
    """A source as ``datasets`` knows it: what to load, which split, and the arguments."""
    file, part = name, split
    if is_uri(name):
        base, bracket, rows = split.partition("[")
        file, part = share(lambda: str(_download(name, base))), f"train{bracket}{rows}"
    if Path(file).suffix in SUPPORTED_EXTENSIONS and Path(file).is_file():
        name = Path(file).suffix.removeprefix(".").replace("jsonl", "json")
        kwargs = {**kwargs, "data_files": {"train": file}}
    elif safe_load and name not in BUILDERS:
        name = _safe_folder(name)
    if name == "csv":
        # An answer may be "None" or "NA": in text these are words, and no missing numbers.
        kwargs = {"keep_default_na": False, **kwargs}
    return name, part, kwargs


def _download(remote: str, split: str) -> Path:
    """Fetches a split's file to a place that its content names.

    What is tokenised is cached by the file's place and time: these are the same for the same
    content, whoever fetches it, and no other run changes the file.
    """
    root = Path(tempfile.gettempdir(), f"streaming-{os.getuid()}")
    root.mkdir(mode=0o700, exist_ok=True)
    names = [f"{remote.rstrip('/')}/{split}{extension}" for extension in SUPPORTED_EXTENSIONS]
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        for name in names:
            file = Path(scratch, name.rpartition("/")[2])
            try:
                get_file(name, str(file))
                break
            except FileNotFoundError:
                continue
        else:
            raise FinetuningFileNotFoundError(names, SUPPORTED_EXTENSIONS)
        with open(file, "rb") as content:
            digest = hashlib.sha256()
            for block in iter(lambda: content.read(BLOCK_BYTES), b""):
                digest.update(block)
        place = root / f"finetuning-{digest.hexdigest()[:32]}" / file.name
        place.parent.mkdir(exist_ok=True)
        os.utime(file, (0, 0))
        os.replace(file, place)
    return place


def _safe_folder(name: str) -> str:
    """A folder with data files alone.

    Raises:
        InvalidFileExtensionError: There are others.
    """
    place = Path(name)
    if not place.is_dir():
        from huggingface_hub import snapshot_download

        allowed = [f"*{extension}" for extension in SUPPORTED_EXTENSIONS]
        place = Path(snapshot_download(name, repo_type="dataset", allow_patterns=allowed))
    for file in place.rglob("*"):
        if file.is_file() and not file.name.endswith((*SUPPORTED_EXTENSIONS, *HARMLESS)):
            raise InvalidFileExtensionError(name, SUPPORTED_EXTENSIONS)
    return str(place)


def _json_fault(source: str, part: str, kwargs: Arguments) -> str | None:
    """The first line of JSON files that is not like the others, None if all are alike."""
    import datasets

    files = datasets.load_dataset_builder(source, **kwargs).config.data_files or {}
    first: dict[str, tuple[str, str]] = {}
    for file in files.get(part.partition("[")[0], []):
        if not str(file).endswith((".json", ".jsonl")) or is_uri(str(file)):
            continue
        with open(file, encoding="utf-8-sig", errors="replace", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip() and (fault := _line_fault(line, f"{file}, line {number}", first)):
                    return fault
    return None


def _line_fault(line: str, place: str, first: dict[str, tuple[str, str]]) -> str | None:
    """What is wrong with a line; ``first`` keeps the type and place of each field's first value."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        return f"{place}: this is no JSON: {error}."
    if not isinstance(row, dict):
        return f"{place}: the row is no object but {type(row).__name__}."
    for key, value in row.items():
        kind = type(value).__name__
        expected, there = (kind, "") if value is None else first.setdefault(key, (kind, place))
        if kind != expected:
            return f"{place}: field {key!r} is {kind}, but {expected} in {there}."
    return None
