"""The weights of a checkpoint one by one, be it a file or a folder of shards."""

import contextlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from composer.checkpoint.download import (
    download_folder,
    download_object_or_file,
    has_shards,
    without_text_link,
)
from composer.checkpoint.monolithic import opened_plain, torch_load_with_validation
from composer.checkpoint.sharded_run import Shards, reader_of_shards
from composer.utils.file_helpers import is_uri, parse_uri

__all__ = ["SavedWeights", "opened_weights"]

_LARGE = ("model", "optimizers")
_MAPPED_BYTES = 1 << 28
"""How much of a file is held in memory at once. Opening it again costs the reading of its index."""


class SavedWeights(Protocol):
    """A checkpoint without its moments, whose weights are in memory only while they are used."""

    content: dict[str, Any]
    """All of it but weights and moments, as a one-file checkpoint holds it."""
    kinds: dict[str, tuple[torch.Size, torch.dtype]]
    """Shapes and types of the weights by name."""

    def read(self, name: str) -> torch.Tensor:
        """Returns a weight, which must not be changed; drop it before many others are read."""
        ...


class _OneFile:
    """Weights that stay in their file until they are used.

    Args:
        path: A plain ``torch.save`` file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_mapped = zipfile.is_zipfile(path)  # torch's oldest form has to be read whole
        self._weights: dict[str, Any] = {}
        self.content = self._open()
        self.kinds = {name: (weight.size(), weight.dtype) for name, weight in self._weights.items()}

    def _open(self) -> dict[str, Any]:
        content = torch_load_with_validation(self._path, mmap=self._is_mapped)
        state = content.get("state", {})
        found = {name: state.pop(name, {}) for name in _LARGE}["model"]
        self._weights = {n: weight for n, weight in found.items() if torch.is_tensor(weight)}
        self._handed_out = 0
        return content

    def read(self, name: str) -> torch.Tensor:
        if self._is_mapped and self._handed_out > _MAPPED_BYTES:
            self._open()  # what has been read of the old mapping leaves the memory with it
        weight = self._weights[name]
        self._handed_out += weight.nbytes
        return weight


class _Folder:
    """Weights that are put together of shards when they are asked for.

    Args:
        shards: The folder's content.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        shards.check_one_save(str(shards.reader.path), of_all=True)
        self.content = shards.read_nested(shards.names_of_rest())
        under = shards.under("state", "model")
        names = {".".join(map(str, path)): name for name, path in under.items()}
        kinds = {name: shards.kind(key) for name, key in names.items()}
        self.kinds = {name: kind for name, kind in kinds.items() if kind is not None}
        self._keys = names

    def read(self, name: str) -> torch.Tensor:
        key = self._keys[name]
        return self._shards.read({key: self._shards.empty(key)})[key]


@contextlib.contextmanager
def opened_weights(path: str, keep_at: str | Path | None = None) -> Iterator[SavedWeights]:
    """Gives the body a checkpoint whose weights it can read one by one. One process calls it.

    Args:
        path: A file or a folder of shards, here or in an object store.
        keep_at: Where a copy of it is kept, by default nowhere.

    Raises:
        FileNotFoundError: If there is no checkpoint, or it is not complete.
        CheckpointContentError: If it names what reading it must not run.
    """
    folder, store = has_shards(path)
    with tempfile.TemporaryDirectory(prefix="composer_weights_") as scratch:
        if folder is not None:
            if keep_at is not None:
                # The address may be that of a link to the folder.
                address = path.removesuffix(parse_uri(path)[2]) + folder
                source = download_folder(address, str(keep_at)) if store is not None else folder
                if store is None and os.path.realpath(keep_at) != folder:
                    shutil.copytree(source, keep_at, dirs_exist_ok=True)
                folder, store = os.path.realpath(keep_at), None
            yield _Folder(Shards(reader_of_shards(folder, store, scratch)))
            return
        with opened_plain(_fetched(path, scratch, keep_at)) as plain:
            yield _OneFile(plain)


def _fetched(path: str, scratch: str, keep_at: str | Path | None) -> str:
    """Returns where a file is on this machine, under a name whose ending tells its form."""
    if not is_uri(path):
        local = os.path.realpath(without_text_link(path))
        if keep_at is not None and os.path.realpath(keep_at) != local:
            shutil.copyfile(local, keep_at)
        return local
    local = os.path.join(scratch, os.path.basename(path.removesuffix(".symlink")))
    download_object_or_file(path, local if keep_at is None else str(keep_at), None)
    if keep_at is not None:
        os.symlink(os.path.realpath(keep_at), local)
    return local
