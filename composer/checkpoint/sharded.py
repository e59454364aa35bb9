"""A dictionary of sharded tensors, written to a folder and read again by torch's checkpoint API.

Writing has two halves: all ranks plan together who writes what, then each writes its files by
itself, at once or from a copy while training goes on. Nothing read is run: neither the index nor
what is not a tensor.
"""

import contextlib
import io
import os
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_loader import load

from composer.checkpoint.allow_list import SAFE_GLOBALS, explain_refusal
from composer.checkpoint.atomic import aside_of, folder_aside, put_in_place, refusal_of_disk
from composer.checkpoint.shard_index import INDEX_NAME, read_index, shard_names
from composer.utils import dist
from composer.utils.checkpoint import ensure_valid_checkpoint

__all__ = [
    "FileSystemReaderWithValidation",
    "FolderWriter",
    "SafeLoadPlanner",
    "flatten",
    "read_sharded",
    "write_sharded",
]

KeyPath = tuple[Any, ...]

# Entries of plain values are a file of their own within the file, of a kilobyte each. A tokenizer
# has one for each of its words: what is below here is kept together.
_KEPT_TOGETHER = ("state", "integrations")


class FileSystemReaderWithValidation(FileSystemReader):
    """Reads shards from a folder, each after a user's function may have refused it.

    Args:
        path: The folder.
    """

    def __init__(self, path: str) -> None:
        if not Path(path).is_dir():
            raise ValueError(f"There is no folder of shards at {path}.")
        super().__init__(path)
        self.files_read: set[str] = set()
        """The names of the files that this rank has read from."""
        self._index: Metadata | None = None

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        """Reads what the plan asks for."""
        wanted = files_of_plan(plan, self.storage_data)
        for name, specs in wanted.items():
            ensure_valid_checkpoint(os.path.join(self.path, name), specs)
        self.files_read.update(wanted)
        return super().read_data(plan, planner)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Reads what there is to read."""
        if self._index is not None:
            return self._index
        self._index = index = read_index(self._get_metadata_path(kwargs.get("rank")))
        if getattr(index, "storage_meta", None) is None:
            index.storage_meta = StorageMeta()
        assert index.storage_meta is not None
        index.storage_meta.load_id = self.load_id
        return index


def files_of_plan(plan: LoadPlan, storage_data: Mapping[Any, Any]) -> dict[str, list[Any]]:
    """Returns the names of the files that a plan reads, and what it reads of each."""
    wanted: dict[str, list[Any]] = {}
    for item in plan.items:
        info = storage_data[item.storage_index]
        wanted.setdefault(str(info.relative_path), []).append(info)
    return wanted


class SafeLoadPlanner(DefaultLoadPlanner):
    """Maps shards to tensors by name, and runs nothing that stands beside them."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Takes a value that is not a tensor."""
        name = str(read_item.dest_index.fqn)
        with torch.serialization.safe_globals(SAFE_GLOBALS):
            try:
                loaded = torch.load(value, map_location="cpu", weights_only=True)
            except pickle.UnpicklingError as error:
                raise explain_refusal(f"The entry {name!r} of the checkpoint", error) from error
        if not self.flatten_state_dict:
            self.state_dict[name] = loaded
            return
        *path, last = self.mappings[name]
        container: Any = self.original_state_dict
        for key in path:
            container = container[key]
        container[last] = loaded


def flatten(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, KeyPath]]:
    """Returns the leaves of a nested state by their joined names, and the path of each.

    A list is a leaf unless a tensor or dictionary stands in it.

    Raises:
        ValueError: If two paths have one name.
    """
    leaves: dict[str, Any] = {}
    paths: dict[str, KeyPath] = {}
    for path, value in _leaves(state, ()):
        name = ".".join(map(str, path))
        if name in leaves:
            raise ValueError(f"Two entries of the state have the name {name!r}: {path}.")
        leaves[name], paths[name] = value, path
    return leaves, paths


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if not _is_branch(value) or path[:2] == _KEPT_TOGETHER:
        yield path, value
        return
    for key, child in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from _leaves(child, (*path, key))


def _is_branch(value: Any) -> bool:
    if isinstance(value, Mapping):
        # A number in a path is a place in a list.
        return bool(value) and all(isinstance(key, str) for key in value)
    return isinstance(value, (list, tuple)) and _has_parts(value)


def _has_parts(values: Any) -> bool:
    return any(
        isinstance(value, (torch.Tensor, Mapping))
        or (isinstance(value, (list, tuple)) and _has_parts(value))
        for value in values
    )


class _SavePlanner(DefaultSavePlanner):
    """Names entries as ``flatten`` does, and may write copies instead of what it planned with."""

    def __init__(self) -> None:
        super().__init__(dedup_save_to_lowest_rank=True)
        self.copies: dict[MetadataIndex, Any] = {}

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Takes the state."""
        del storage_meta
        self.state_dict, self.mappings = flatten(state_dict)
        self.is_coordinator = is_coordinator

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """Returns what is to be written."""
        if self.copies:
            return self.copies[write_item.index]
        return super().resolve_data(write_item)


class FolderWriter:
    """Writes a state to a folder, which appears whole or not at all.

    All ranks make one together. Ranks that hold copies of one shard write it once.

    Args:
        state: The state, nested; tensors may be sharded.
        folder: The folder.
        group: The ranks, in whose name what follows is agreed upon; another group than that of
            training if it is to happen in a thread.
    """

    def __init__(self, state: dict[str, Any], folder: str, group: Any = None) -> None:
        self.folder = folder
        self.files: list[str] = []
        """The names of the files of all ranks, once they are written; only rank 0 knows them."""
        self._group = group
        self._is_first = dist.get_global_rank() == 0
        dist.from_rank_zero(lambda: folder_aside(folder))
        aside = aside_of(Path(folder))
        aside.mkdir(parents=True, exist_ok=True)  # where nodes do not share their disks
        self._writer = FileSystemWriter(aside)
        self._planner = _SavePlanner()
        self._plan_together(state)

    def _plan_together(self, state: dict[str, Any]) -> None:
        planner, writer = self._planner, self._writer
        planner.set_up_planner(state, writer.storage_meta(), self._is_first)
        writer.set_up_storage_writer(self._is_first)
        own = writer.prepare_local_plan(planner.create_local_plan())
        # Each rank works out the whole plan, from the same parts, so nobody has to send it.
        plans, self._index = planner.create_global_plan(dist.all_gather_object(own))
        plans = writer.prepare_global_plan(plans)
        self._plan = planner.finish_plan(plans[dist.get_global_rank()])

    def stage(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Copies what this rank will write, so that the state may change from now on."""
        planner = self._planner
        copies: dict[MetadataIndex, Any] = {}
        for item in self._plan.items:
            value = planner.resolve_data(item)
            is_tensor = item.type is not WriteItemType.BYTE_IO
            copies[item.index] = copy(value.detach()) if is_tensor else value  # type: ignore[union-attr]
        planner.copies = copies
        planner.state_dict = {}

    def write(self) -> str:
        """Writes, and returns the folder once it is whole on all ranks. Raises on all or none."""
        try:
            self._write()
        except BaseException:
            if dist.get_local_rank() == 0:  # what has been written only fills the disk
                shutil.rmtree(self._writer.path, ignore_errors=True)
            raise
        if self._is_first:
            self.files = [*shard_names(self._index), INDEX_NAME]
        return self.folder

    def _write(self) -> None:
        results, error = None, None
        try:
            results = self._writer.write_data(self._plan, self._planner).value()
        except Exception as caught:  # of any kind: the other ranks must know
            error = refusal_of_disk(caught, self.folder) or caught
        told = self._agree(results, error)

        def finish() -> None:
            self._writer.finish(self._index, told)
            put_in_place(self.folder)

        self._do(self._is_first, finish)
        self._do(not self._is_first and dist.get_local_rank() == 0, self._put_in_place_here)

    def _put_in_place_here(self) -> None:
        if Path(self._writer.path).exists():  # this node has a disk of its own
            put_in_place(self.folder)

    def _do(self, is_mine: bool, action: Callable[[], None]) -> None:
        error = None
        try:
            if is_mine:
                action()
        except Exception as caught:
            error = caught
        self._agree(None, error)

    def _agree(self, result: Any, error: Exception | None) -> list[Any]:
        """Returns all ranks' results, or raises on all ranks what went wrong on one."""
        text = None if error is None else f"{type(error).__name__}: {error}"
        told = dist.all_gather_object((result, text), self._group)
        if error is not None:
            raise error
        for rank, (_, trouble) in enumerate(told):
            if trouble is not None:
                raise RuntimeError(
                    f"Rank {rank} could not write its part of {self.folder}: {trouble}"
                )
        return [found for found, _ in told]


def write_sharded(state: dict[str, Any], folder: str) -> None:
    """Writes each rank's shards, and an index, to a folder. All ranks call it."""
    FolderWriter(state, folder).write()


def read_sharded(
    state: dict[str, Any],
    folder: str | FileSystemReaderWithValidation,
    planner: LoadPlanner | None = None,
) -> None:
    """Fills a dictionary of tensors from a folder, whatever the number of ranks that wrote it.

    All ranks call it.

    Args:
        state: The tensors, as they are sharded now; changed in place.
        folder: The folder, or a reader of it.
        planner: How to map the one on the other; by default by name.
    """
    reader = FileSystemReaderWithValidation(folder) if isinstance(folder, str) else folder
    with _plain_errors(), warnings.catch_warnings():
        # One process needs no group, and is right to have none.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(state, storage_reader=reader, planner=planner or SafeLoadPlanner())


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Raises on all ranks what went wrong on the first; torch's own error is no ``Exception``."""
    try:
        yield
    except CheckpointException as error:
        raise error.failures[min(error.failures)][0] from error
