"""Rows of JSON files, one at a time, with the file and line of whatever is wrong."""

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from composer.utils.file_helpers import is_uri, list_remote_objects, parse_uri
from llmfoundry.utils.data_prep_utils import local_paths
from llmfoundry.utils.exceptions import CannotUnicodeDecodeFile, InvalidDatasetError

__all__ = ["json_files", "read_texts", "text_of"]

JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
PACKED_SUFFIXES = (".gz", ".zst", ".zstd")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # which some editors put in front and JSON does not allow
SPACE = re.compile(r"[ \t\r\n]*")
ARRAY_CHARACTERS = 1_000_000


def json_files(path: str) -> list[str]:
    """The JSON files that a path names: itself, or those in the folder, in order of name.

    Args:
        path: A file or folder, here or in a store such as ``s3://bucket/folder``.

    Raises:
        FileNotFoundError: There is no such path, or the folder holds no JSON file.
    """
    if is_uri(path):
        names = [path] if _is_json(path) else _in_store(path.rstrip("/") + "/")
    elif Path(path).is_file():
        return [path]
    elif not Path(path).is_dir():
        raise FileNotFoundError(f"{path} does not exist (looked in {Path.cwd()}).")
    else:
        names = [str(each) for each in Path(path).iterdir() if each.is_file()]
    files = sorted(filter(_is_json, names))
    if not files:
        raise FileNotFoundError(
            f"Folder {path} holds no JSON files ({', '.join(JSON_SUFFIXES)}, also packed with "
            f"{', '.join(PACKED_SUFFIXES)})."
        )
    return files


def _in_store(address: str) -> list[str]:
    place = address.removesuffix(parse_uri(address)[2])
    files = [place + name for name in list_remote_objects(address)]
    return [file for file in files if "/" not in file.removeprefix(address)]


def _is_json(path: str) -> bool:
    suffixes = [each.lower() for each in Path(path).suffixes]
    if suffixes and suffixes[-1] in PACKED_SUFFIXES:
        suffixes.pop()
    return bool(suffixes) and suffixes[-1] in JSON_SUFFIXES


def read_texts(files: list[str]) -> Iterator[str]:
    """Yields the ``text`` of each row of JSON files: one object a line, or one array of objects.

    Raises:
        InvalidDatasetError: A row is no object with a ``text`` that is text.
        CannotUnicodeDecodeFile: A row is not UTF-8.
    """
    for path, file in local_paths(files):
        for place, row in _rows(path, file):
            yield text_of(row, place)


def text_of(row: Any, place: str) -> str:
    """The ``text`` of a row.

    Args:
        row: A row of a data set.
        place: Where it is, for the error.

    Raises:
        InvalidDatasetError: It is no object with a ``text`` that is text.
    """
    text = row.get("text") if isinstance(row, dict) else None
    if isinstance(text, str):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            fault = f"has a 'text' that is no Unicode: {error.reason} at {error.start}"
        else:
            return text
    elif not isinstance(row, dict):
        fault = f"is no object but {type(row).__name__}"
    elif "text" not in row:
        fault = f"has no key 'text'; its keys are {sorted(row)}"
    else:
        fault = f"has a 'text' that is no text but {text!r}"
    raise InvalidDatasetError(f"{place}: the row {fault}. Mend it or take it out.")


def _rows(path: str, file: str) -> Iterator[tuple[str, Any]]:
    try:
        yield from _rows_of_stream(path, file)
    except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        raise InvalidDatasetError(
            f"{file} is damaged or cut short ({error}). Fetch or pack it again."
        ) from error


def _rows_of_stream(path: str, file: str) -> Iterator[tuple[str, Any]]:
    with _opened(path) as stream:
        head = stream.peek(1).removeprefix(BYTE_ORDER_MARK).lstrip()
        if head[:1] == b"[":
            text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="\n")
            for number, row in enumerate(_array(text, file), start=1):
                yield f"{file}, row {number}", row
            return
        # Only a newline ends a row: text may hold other separators that str.splitlines splits at.
        for number, line in enumerate(stream, start=1):
            place = f"{file}, line {number}"
            if number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK)
            if line.strip():
                yield place, _parse(line, place)


def _parse(line: bytes, place: str) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise CannotUnicodeDecodeFile(place) from error
    except json.JSONDecodeError as error:
        raise InvalidDatasetError(f"{place}: this is no JSON: {error}") from error


def _array(stream: io.TextIOWrapper, file: str) -> Iterator[Any]:
    """Yields the values of a JSON array, of which only a part is in memory at a time."""
    decode = json.JSONDecoder().raw_decode
    number, at = 1, 0
    try:
        text = stream.read(ARRAY_CHARACTERS)
        at = text.index("[") + 1
        while True:
            try:
                start = _space(text, at)
                if number == 1 and text[start] == "]":
                    return
                value, end = decode(text, start)
                end = _space(text, end)
                mark = text[end]
            except (json.JSONDecodeError, IndexError) as error:
                # Perhaps the value only goes on behind what was read so far.
                more = stream.read(max(ARRAY_CHARACTERS, len(text)))
                if not more:
                    place = f"{file}, row {number}"
                    raise InvalidDatasetError(f"{place}: this is no JSON: {error}") from error
                text, at = text[at:] + more, 0
                continue
            if mark not in ",]":
                raise InvalidDatasetError(f"{file}, row {number}: {mark!r} follows, no comma.")
            yield value
            if mark == "]":
                return
            number, at = number + 1, end + 1
    except UnicodeDecodeError as error:
        raise CannotUnicodeDecodeFile(file) from error


def _space(text: str, at: int) -> int:
    match = SPACE.match(text, at)
    assert match is not None
    return match.end()


def _opened(path: str) -> io.BufferedReader:
    raw: Any
    suffix = Path(path).suffix.lower()
    if suffix in PACKED_SUFFIXES and not Path(path).stat().st_size:
        raise EOFError("it is empty")
    if suffix == ".gz":
        raw = gzip.open(path, "rb")
    elif suffix in PACKED_SUFFIXES:
        raw = _Unpacked(path)
    else:
        raw = open(path, "rb", buffering=0)
    return io.BufferedReader(raw, 1 << 20)


class _Unpacked(io.RawIOBase):
    """A file of zstd frames; the library's own reader takes one that is cut short for whole."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._packed, self._bytes = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._bytes:
            self._packed = self._packed or self._file.read(1 << 14)
            if not self._packed:
                if not self._frame.eof:
                    raise EOFError("its last zstd frame has no end")
                return 0
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._bytes = memoryview(self._frame.decompress(self._packed))
            self._packed = self._frame.unused_data
        size = min(len(buffer), len(self._bytes))
        buffer[:size], self._bytes = self._bytes[:size], self._bytes[size:]
        return size

    def close(self) -> None:
        self._file.close()
        super().close()
