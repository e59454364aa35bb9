"""How a one-file checkpoint is written and read: ``.pt``, ``.pt.<compressor>`` or a tarball."""

import contextlib
import os
import pickle
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any, Literal

import torch

from composer.checkpoint.allow_list import SAFE_GLOBALS, explain_refusal, things_that_cannot_be_read
from composer.checkpoint.atomic import written_aside
from composer.checkpoint.naming import is_tar
from composer.utils import dist
from composer.utils.checkpoint import ensure_valid_checkpoint
from composer.utils.compression import get_compressor, is_compressed_pt

__all__ = [
    "STATES_FILENAME",
    "is_plain",
    "is_whole",
    "opened_plain",
    "safe_torch_load",
    "torch_load_with_validation",
    "unpack",
    "write_checkpoint_file",
]

# The one member of a checkpoint that is a tarball.
STATES_FILENAME = "composer_states.pt"

_TarMode = Literal["w", "w:gz", "w:bz2", "w:xz"]
_TAR_MODES: dict[str, _TarMode] = {
    ".tar": "w",
    ".tar.gz": "w:gz",
    ".tgz": "w:gz",
    ".tar.bz2": "w:bz2",
    ".tar.lzma": "w:xz",
}


def _tar_mode(filename: str) -> _TarMode:
    for extension, mode in _TAR_MODES.items():
        if filename.endswith(extension):
            return mode
    raise ValueError(
        f"{filename} does not end with a valid tarfile extension: use one of "
        f"{', '.join(_TAR_MODES)}.",
    )


def _warn_of_unreadable(state_dict: dict[str, Any]) -> None:
    refused = list(things_that_cannot_be_read(state_dict))
    if refused:
        named = ", ".join(
            f"{path} ({kind.__module__}.{kind.__qualname__})" for path, kind in refused[:5]
        )
        warnings.warn(
            f"The checkpoint holds {len(refused)} thing(s) that loading it will refuse: {named}. "
            "Return plain values from state_dict(), leave them out with save_ignore_keys, or call "
            "torch.serialization.add_safe_globals with these classes in the programs that save and "
            "load.",
            stacklevel=3,
        )


def write_checkpoint_file(state_dict: dict[str, Any], filename: str) -> str:
    """Writes a state to one file, which appears whole or not at all, and returns its path.

    Args:
        state_dict: Tensors, plain containers and plain values; a warning names anything else.
        filename: Its ending says the form: a tarball, ``.pt.<compressor>``, or else a plain file.

    Raises:
        ValueError: If the name is that of a tarball of an unknown kind.
    """
    _warn_of_unreadable(state_dict)
    if is_tar(filename):
        _write_tar(state_dict, filename)
    elif is_compressed_pt(filename):
        compressor = get_compressor(filename)
        with written_aside(filename) as aside, compressor.compress(aside) as stream:
            torch.save(state_dict, stream)
    else:
        # To a path torch would write by itself, as fast, and not tell what the disk said.
        with written_aside(filename) as aside, open(aside, "wb") as stream:
            torch.save(state_dict, stream)
    return filename


def _write_tar(state_dict: dict[str, Any], filename: str) -> None:
    mode = _tar_mode(filename)
    with written_aside(filename) as aside:
        # A member's size stands before it, so the state is written to a file first: one without a
        # name, beside the target, which has the room, and gone with the process.
        with tempfile.TemporaryFile(dir=os.path.dirname(aside)) as plain:
            torch.save(state_dict, plain)
            member = tarfile.TarInfo(STATES_FILENAME)
            member.size = plain.tell()
            member.mtime = int(time.time())
            plain.seek(0)
            with tarfile.open(aside, mode) as tar:
                tar.addfile(member, plain)


def is_plain(path: str) -> bool:
    """Tells by its name whether a checkpoint is a ``torch.save`` file as it stands."""
    return not is_tar(path) and not is_compressed_pt(path)


def unpack(path: str, plain: str) -> None:
    """Writes the content of a tarball or compressed file to a plain ``torch.save`` file.

    Raises:
        ValueError: If a tarball has no ``composer_states.pt``.
    """
    with open(plain, "wb") as target, _unpacked(path) as source:
        while chunk := source.read(1 << 22):
            target.write(chunk)


@contextlib.contextmanager
def opened_plain(path: str) -> Iterator[str]:
    """Gives the body the path of a plain ``torch.save`` file with the content of ``path``.

    Args:
        path: A checkpoint in one of the forms that :func:`write_checkpoint_file` writes.
    """
    if is_plain(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="composer_load_") as scratch:
        plain = os.path.join(scratch, STATES_FILENAME)
        unpack(path, plain)
        yield plain


@contextlib.contextmanager
def _unpacked(path: str) -> Iterator[Any]:
    if not is_tar(path):
        with get_compressor(path).decompress(path) as stream:
            yield stream
        return
    # The member is read as a stream: nothing is ever extracted to a path that the tarball names.
    with tarfile.open(path) as tar:
        for member in tar:
            if os.path.basename(member.name) == STATES_FILENAME and member.isfile():
                yield tar.extractfile(member)
                return
    raise ValueError(
        f"{path} is a tarball without {STATES_FILENAME}, so it is no checkpoint of this program."
    )


def torch_load_with_validation(
    path: str | os.PathLike[str], map_location: Any = "cpu", mmap: bool = False
) -> Any:
    """Reads a ``torch.save`` file without running anything that it names.

    Args:
        path: A plain file, not a tarball. See ``composer.utils.checkpoint`` for who may refuse it.
        map_location: Where the tensors go, as for ``torch.load``.
        mmap: Leave the tensors in the file until they are used.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointContentError: If the file names a global outside the fixed list.
        ValueError: If the validation function says no.
    """
    path = str(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    ensure_valid_checkpoint(path)
    with torch.serialization.safe_globals(SAFE_GLOBALS):
        try:
            return torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
        except pickle.UnpicklingError as error:
            raise explain_refusal(path, error) from error


def safe_torch_load(
    composer_states_filepath: str | os.PathLike[str],
    map_location: Any = "cpu",
    load_monolith_rank0_only: bool = False,
) -> Any:
    """Reads a checkpoint's plain file without running anything that it names.

    Args:
        composer_states_filepath: A plain file, not a tarball.
        map_location: Where the tensors go, as for ``torch.load``.
        load_monolith_rank0_only: Rank 0 reads for all ranks, which call this together. The others
            get everything but weights and moments: their ``model`` and ``optimizers`` are None.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointContentError: If the file names a global outside the fixed list.
        ValueError: If the validation function says no.
    """
    if not load_monolith_rank0_only:
        return torch_load_with_validation(composer_states_filepath, map_location)
    whole: dict[str, Any] = {}

    def read() -> dict[str, Any]:
        whole.update(torch_load_with_validation(composer_states_filepath, map_location))
        large = {name: None for name in ("model", "optimizers") if name in whole["state"]}
        return {**whole, "state": {**whole["state"], **large}}

    others = dist.from_rank_zero(read)
    return whole if dist.get_global_rank() == 0 else others


def is_whole(path: str | os.PathLike[str]) -> bool:
    """Tells, by reading a few bytes, whether a checkpoint file was cut short.

    What this program writes is whole by construction; files of other writers, or copied by hand,
    may not be. A compressed file says nothing cheaply and counts as whole unless it is empty.
    """
    path = str(path)
    try:
        if os.path.getsize(path) == 0:
            return False
        if is_compressed_pt(path) or (is_tar(path) and not path.endswith(".tar")):
            return True
        if is_tar(path):
            with tarfile.open(path) as tar:
                return any(_fits(member, path) for member in tar)
        with zipfile.ZipFile(path) as archive:
            return bool(archive.namelist())
    except (OSError, tarfile.TarError, zipfile.BadZipFile):
        return False


def _fits(member: tarfile.TarInfo, path: str) -> bool:
    end = member.offset_data + member.size
    return os.path.basename(member.name) == STATES_FILENAME and end <= os.path.getsize(path)
