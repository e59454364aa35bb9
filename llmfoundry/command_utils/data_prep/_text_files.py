"""Text files in pieces that tokenise as the whole would."""

import re
from collections.abc import Iterator
from pathlib import Path

from composer.utils.file_helpers import is_uri
from llmfoundry.utils.exceptions import (
    CannotUnicodeDecodeFile,
    InputFolderMissingDataError,
    InputFolderNotFound,
)

__all__ = ["get_object_names", "read_pieces"]

PIECE_CHARACTERS = 100_000
TEXT_SUFFIX = ".txt"
OTHER_TEXT_SUFFIXES = (".md", ".rst", ".text")
# A single newline between two words: no tokenizer joins what stands on its two sides.
SAFE_CUT = re.compile(r"\S\n(?=\S)")


def get_object_names(input_folder: str) -> list[str]:
    """The text files below a folder, in order of name.

    These are its ``.txt`` files; a folder without any is searched for ``.md``, ``.rst`` and
    ``.text``.

    Raises:
        InputFolderNotFound: There is no such folder.
        InputFolderMissingDataError: There is no text file below it.
    """
    if is_uri(input_folder):
        raise ValueError(
            f"Input {input_folder!r} is remote, which data preparation does not read in this "
            "version. Copy it to a local folder first."
        )
    folder = Path(input_folder)
    if folder.exists() and not folder.is_dir():
        raise InputFolderNotFound(input_folder)
    files = sorted(str(each) for each in folder.rglob("*") if each.is_file())
    for suffixes in ((TEXT_SUFFIX,), OTHER_TEXT_SUFFIXES):
        names = [name for name in files if name.lower().endswith(suffixes)]
        if names:
            return names
    raise InputFolderMissingDataError(input_folder)


def read_pieces(file: str) -> Iterator[str]:
    """Yields the text of a file in pieces of about a hundred thousand characters.

    Raises:
        CannotUnicodeDecodeFile: The file is not UTF-8.
    """
    try:
        with open(file, encoding="utf-8") as stream:
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
