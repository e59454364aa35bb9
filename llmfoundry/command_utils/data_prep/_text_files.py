"""Text files in pieces that tokenise as the whole would."""

import re
from collections.abc import Iterator
from pathlib import Path

from composer.utils.file_helpers import is_uri, list_remote_objects, parse_uri
from llmfoundry.utils.exceptions import (
    CannotUnicodeDecodeFile,
    InputFolderMissingDataError,
    InputFolderNotFound,
)
from llmfoundry.utils.stores import local_file

__all__ = ["get_object_names", "read_pieces"]

PIECE_CHARACTERS = 100_000
TEXT_SUFFIX = ".txt"
OTHER_TEXT_SUFFIXES = (".md", ".rst", ".text")
# A single newline between two words: no tokenizer joins what stands on its two sides.
SAFE_CUT = re.compile(r"\S\n(?=\S)")


def get_object_names(input_folder: str) -> list[str]:
    """The text files below a folder, here or in a store, in order of name.

    These are its ``.txt`` files; a folder without any is searched for ``.md``, ``.rst`` and
    ``.text``.

    Raises:
        InputFolderNotFound: There is no such folder.
        InputFolderMissingDataError: There is no text file below it.
    """
    files = _files_in_store(input_folder) if is_uri(input_folder) else _files_in(input_folder)
    for suffixes in ((TEXT_SUFFIX,), OTHER_TEXT_SUFFIXES):
        names = [name for name in files if name.lower().endswith(suffixes)]
        if names:
            return names
    raise InputFolderMissingDataError(input_folder)


def _files_in(input_folder: str) -> list[str]:
    folder = Path(input_folder)
    if folder.exists() and not folder.is_dir():
        raise InputFolderNotFound(input_folder)
    return sorted(str(each) for each in folder.rglob("*") if each.is_file())


def _files_in_store(input_folder: str) -> list[str]:
    address = input_folder.rstrip("/") + "/"
    place = address.removesuffix(parse_uri(address)[2])
    try:
        return [place + name for name in list_remote_objects(address)]
    except FileNotFoundError as error:
        raise InputFolderNotFound(input_folder) from error


def read_pieces(file: str) -> Iterator[str]:
    """Yields the text of a file, here or in a store, in pieces of about 100,000 characters.

    Raises:
        CannotUnicodeDecodeFile: The file is not UTF-8.
    """
    try:
        with local_file(file) as path, open(path, encoding="utf-8") as stream:
            rest = ""
            while text := stream.read(PIECE_CHARACTERS):
                text = rest + text
                cut = _cut(text)
                if cut:
                    yield text[:cut]
                rest = text[cut:]
            if rest:
                yield rest
    except UnicodeDecodeError as error:
        raise CannotUnicodeDecodeFile(file) from error


def _cut(text: str) -> int:
    """Where to cut a text that may go on: at the last line end, else the last gap, else not yet."""
    if len(text) < PIECE_CHARACTERS:
        return 0
    tail = max(0, len(text) - PIECE_CHARACTERS // 10)
    ends = [match.end() for match in SAFE_CUT.finditer(text, tail)]
    if ends:
        return ends[-1]
    # Without lines, words: most tokenizers take a space together with the word behind it.
    gaps = [match.start() + 1 for match in re.finditer(r"\S\s(?=\S)", text[tail:])]
    return tail + gaps[-1] if gaps else len(text)
