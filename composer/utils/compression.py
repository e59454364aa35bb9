"""Compressing checkpoints, while they are written, with the command-line programs for it."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = [
    "KNOWN_COMPRESSORS",
    "CliCompressor",
    "CompressorNotFound",
    "get_compressor",
    "is_compressed_pt",
]


class CompressorNotFound(FileNotFoundError):
    """Raised when a file name asks for a compressor that does not exist or is not installed."""


def is_compressed_pt(filename: str | os.PathLike[str]) -> bool:
    """Tells by its name whether a file is a compressed ``.pt``.

    >>> is_compressed_pt("ep1.pt.zst"), is_compressed_pt("ep1.pt")
    (True, False)
    """
    parts = Path(filename).name.split(".")
    return len(parts) > 2 and parts[-2] == "pt" and parts[-1] != "symlink"


class CliCompressor:
    """A program that compresses its standard input and, with ``-dc``, unpacks a file.

    Args:
        extension: The ending of its files, without the dot.
        cmd: The program's name, the extension by default.
    """

    def __init__(self, extension: str, cmd: str | None = None) -> None:
        self.extension = extension
        self.cmd = cmd if cmd is not None else extension

    def __repr__(self) -> str:
        return f"CliCompressor({self.extension!r}, {self.cmd!r})"

    @property
    def exists(self) -> bool:
        """Whether the program is installed."""
        return shutil.which(self.cmd) is not None

    def check_exists(self) -> None:
        """Raises CompressorNotFound if the program is not installed."""
        if not self.exists:
            raise CompressorNotFound(
                f'Could not find command "{self.cmd}" in the PATH. Install it, or choose '
                f"another ending than .{self.extension}.",
            )

    @contextlib.contextmanager
    def compress(self, out_filename: str) -> Iterator[IO[bytes]]:
        """Yields a stream whose content ends up compressed in ``out_filename``.

        Raises:
            OSError: If the program fails.
        """
        self.check_exists()
        with open(out_filename, "wb") as target:
            process = subprocess.Popen(
                [self.cmd], stdin=subprocess.PIPE, stdout=target, stderr=subprocess.PIPE
            )
            assert process.stdin is not None
            with _ended(process, self.cmd):
                yield process.stdin
                process.stdin.close()

    @contextlib.contextmanager
    def decompress(self, in_filename: str) -> Iterator[IO[bytes]]:
        """Yields a stream of the unpacked content of ``in_filename``; read it to its end.

        Raises:
            OSError: If the program fails, as with a damaged file.
        """
        self.check_exists()
        process = subprocess.Popen(
            [self.cmd, "-dc", in_filename], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        with _ended(process, self.cmd):
            yield process.stdout


@contextlib.contextmanager
def _ended(process: "subprocess.Popen[bytes]", cmd: str) -> Iterator[None]:
    """Ends the program with the body, whatever happens, and says what it said if it failed."""
    try:
        yield
    except BaseException:
        process.kill()
        process.communicate()
        raise
    process.stdin = None  # closed above; communicate would flush it again
    _, trouble = process.communicate()
    if process.returncode != 0:
        raise OSError(
            f"{cmd} failed with code {process.returncode}: "
            f"{trouble.decode(errors='replace').strip()}"
        )


KNOWN_COMPRESSORS = [
    CliCompressor("bz2", "bzip2"),
    CliCompressor("gz", "gzip"),
    CliCompressor("lz4"),
    CliCompressor("lzma"),
    CliCompressor("lzo", "lzop"),
    CliCompressor("xz"),
    CliCompressor("zst", "zstd"),
]


def get_compressor(filename: str | os.PathLike[str]) -> CliCompressor:
    """Returns the compressor that a file's ending names.

    Raises:
        ValueError: If the name is not that of a compressed ``.pt``.
        CompressorNotFound: If there is no compressor for the ending.
    """
    if not is_compressed_pt(filename):
        raise ValueError(
            f"{filename} is not the name of a compressed .pt file, such as model.pt.zst."
        )
    extension = Path(filename).name.rpartition(".")[2]
    for compressor in KNOWN_COMPRESSORS:
        if compressor.extension == extension:
            return compressor
    raise CompressorNotFound(
        f'Could not find compressor for "{filename}". Known endings: '
        f"{', '.join('.pt.' + known.extension for known in KNOWN_COMPRESSORS)}.",
    )
