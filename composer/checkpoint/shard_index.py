"""The index of a folder of shards, ``.metadata``: read without running it, and held to its word.

The index is a pickle, written after all shards are on the disk: a folder without it is none.
"""

import os
import pathlib
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import serialization
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.metadata import Metadata

from composer.checkpoint.allow_list import CheckpointContentError
from composer.checkpoint.restricted_pickle import RestrictedUnpickler
from composer.utils.checkpoint import ensure_valid_checkpoint

__all__ = ["INDEX_NAME", "damaged_shards", "is_whole_folder", "read_index", "shard_names"]

INDEX_NAME = ".metadata"

_RECORDS = (
    "BytesStorageMetadata ChunkStorageMetadata Metadata MetadataIndex StorageMeta TensorProperties "
    "TensorStorageMetadata _MEM_FORMAT_ENCODING"
)


class _IndexUnpickler(RestrictedUnpickler):
    """Knows torch's records of what is where, too; they hold values and do nothing."""

    _globals = {
        **RestrictedUnpickler._globals,
        **{(metadata.__name__, name): getattr(metadata, name) for name in _RECORDS.split()},
        (filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo,
        (serialization.__name__, "_get_layout"): serialization._get_layout,
        # Where the folder was when it was written; a path that is only text does for that.
        **{
            (module, name): pathlib.PurePosixPath
            for module in ("pathlib", "pathlib._local")
            for name in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
        },
    }


def read_index(path: str | os.PathLike[str]) -> Metadata:
    """Reads an index file without importing or running anything that it names.

    Raises:
        FileNotFoundError: If there is none.
        CheckpointContentError: If it names what no index names, or is damaged.
    """
    ensure_valid_checkpoint(str(path))
    with open(path, "rb") as file:
        try:
            found = _IndexUnpickler(file).load()
        except CheckpointContentError:
            raise
        # What a cut or foreign pickle raises depends on where it is cut.
        except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError) as error:
            raise CheckpointContentError(
                f"{path} is damaged, or no index of shards that this torch can read: {error}"
            ) from error
    if not isinstance(found, Metadata):
        raise CheckpointContentError(f"{path} is no index of shards: it holds a {type(found)}.")
    return found


def shard_names(index: Metadata) -> list[str]:
    """Returns the names of the files that an index leads to."""
    return sorted(_sizes(index))


def _sizes(index: Metadata) -> dict[str, int]:
    sizes: dict[str, int] = {}
    infos: Iterable[Any] = (index.storage_data or {}).values()
    for info in infos:
        name = str(info.relative_path)
        sizes[name] = max(sizes.get(name, 0), info.offset + info.length)
    return sizes


def damaged_shards(folder: str | os.PathLike[str], index: Metadata) -> list[str]:
    """Returns the names of files that are missing, or shorter than the index says."""
    return [
        name
        for name, size in sorted(_sizes(index).items())
        if not (Path(folder, name).is_file() and Path(folder, name).stat().st_size >= size)
    ]


def is_whole_folder(folder: str | os.PathLike[str]) -> bool:
    """Tells whether a folder is a complete sharded checkpoint: an index, and all it leads to."""
    try:
        index = read_index(Path(folder, INDEX_NAME))
    except (OSError, CheckpointContentError):
        return False
    return not damaged_shards(folder, index)
