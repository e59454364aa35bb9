"""Text files in pieces that tokenise as the whole would, but for false spaces of some tokenizers.

Tokenizers that put a space before each text (SentencePiece's, as of Llama 2) do so at each cut.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from composer.utils.file_helpers import is_uri, list_remote_objects, parse_uri
from llmfoundry.utils.data_prep_utils import local_paths
from llmfoundry.utils.exceptions import (
    CannotUnicodeDecodeFile,
    InputFolderMissingDataError,
    InputFolderNotFound,
)

__all__ = ["get_object_names", "read_documents", "read_pieces"]

PIECE_CHARACTERS = 1_000_000
TEXT_SUFFIX = ".txt"
OTHER_TEXT_SUFFIXES = (".md", ".rst", ".text")
# A single newline between two words, which no byte-level tokenizer joins with what follows, unless
# that is a slash, or a single space, which these join with what follows alone.
LINE_END = re.compile(r"\S\n(?=[^\s/])")
GAP = re.compile(r"\S(?= \S)")


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
    return sorted(_files_below(folder)) if folder.exists() else []


def _files_below(folder: Path, above: frozenset[str] = frozenset()) -> Iterator[str]:
    """The files of a folder and of those in it, by links too, without hidden ones."""
    real = os.path.realpath(folder)
    if real in above:  # A link that leads round for ever.
        return
    for each in folder.iterdir():
        if each.name.startswith("."):
            continue
        if each.is_dir():
            yield from _files_below(each, above | {real})
        elif each.is_file():
            yield str(each)


def _files_in_store(input_folder: str) -> list[str]:
    address = input_folder.rstrip("/") + "/"
    place = address.removesuffix(parse_uri(address)[2])
    try:
        return [place + name for name in list_remote_objects(address)]
    except FileNotFoundError as error:
        raise InputFolderNotFound(input_folder) from error


def read_documents(files: list[str]) -> Iterator[Iterator[str]]:
    """Yields each file, here or in a store, as its pieces, to be read before the next is asked for.

    Raises:
        CannotUnicodeDecodeFile: A file is not UTF-8.
    """
    return (read_pieces(path, file) for path, file in local_paths(files))


def read_pieces(path: str, file: str) -> Iterator[str]:
    """Yields the text of a file in pieces of about a million characters.

    Args:
        path: Where it is on this machine.
        file: Its name for the error.

    Raises:
        CannotUnicodeDecodeFile: The file is not UTF-8.
    """
    try:
        with open(path, encoding="utf-8") as stream:
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
    for pattern in (LINE_END, GAP):
        cuts = [match.end() for match in pattern.finditer(text, tail)]
        if cuts:
            return cuts[-1]
    return len(text)
