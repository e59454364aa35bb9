"""Rows of JSON files, one at a time, with the file and line of whatever is wrong."""

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import zstandard

from llmfoundry.utils.exceptions import InvalidDatasetError

__all__ = ["json_files", "read_texts"]

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
PACKED_SUFFIXES = (".gz", ".zst", ".zstd")


def json_files(path: str) -> list[Path]:
    """The JSON files that a path names: itself, or those in the folder, in order of name.

    Raises:
        FileNotFoundError: There is no such path, or the folder holds no JSON file.
    """
    place = Path(path)
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise FileNotFoundError(f"{path} does not exist (looked in {Path.cwd()}).")
    files = sorted(each for each in place.iterdir() if each.is_file() and _is_json(each))
    if not files:
        raise FileNotFoundError(
            f"Folder {path} holds no JSON files ({', '.join(JSON_SUFFIXES)}, also packed with "
            f"{', '.join(PACKED_SUFFIXES)})."
        )
    return files


def _is_json(path: Path) -> bool:
    suffixes = [each.lower() for each in path.suffixes]
    if suffixes and suffixes[-1] in PACKED_SUFFIXES:
        suffixes.pop()
    return bool(suffixes) and suffixes[-1] in JSON_SUFFIXES


def read_texts(files: list[Path]) -> Iterator[str]:
    """Yields the ``text`` of each row of JSON files: one object a line, or one array of objects.

    Raises:
        InvalidDatasetError: A row is no object with a ``text`` that is text.
    """
    for file in files:
        for place, row in _rows(file):
            text = row.get("text") if isinstance(row, dict) else None
            if isinstance(text, str):
                yield text
                continue
            if not isinstance(row, dict):
                fault = f"is no object but {type(row).__name__}"
            elif "text" not in row:
                fault = f"has no key 'text'; its keys are {sorted(row)}"
            else:
                fault = f"has a 'text' that is no text but {text!r}"
            raise InvalidDatasetError(f"{place}: the row {fault}.")


def _rows(file: Path) -> Iterator[tuple[str, Any]]:
    with _opened(file) as stream:
        if _starts_with_bracket(stream):
            rows = _parse(stream.read(), str(file))
            for number, row in enumerate(rows):
                yield f"{file}, row {number + 1}", row
            return
        # Only a newline ends a row: text may hold other separators that str.splitlines splits at.
        for number, line in enumerate(stream, start=1):
            if line.strip():
                place = f"{file}, line {number}"
                yield place, _parse(line, place)


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidDatasetError(f"{place}: this is no JSON: {error}") from error


def _opened(file: Path) -> IO[str]:
    raw: Any
    if file.suffix == ".gz":
        raw = gzip.open(file, "rb")
    elif file.suffix in (".zst", ".zstd"):
        raw = zstandard.open(file, "rb")
    else:
        raw = file.open("rb")
    # utf-8-sig: some editors put a byte-order mark in front, which JSON does not allow.
    return io.TextIOWrapper(io.BufferedReader(raw), encoding="utf-8-sig", newline="\n")


def _starts_with_bracket(stream: IO[str]) -> bool:
    while (character := stream.read(1)).isspace():
        pass
    stream.seek(0)
    return character == "["
