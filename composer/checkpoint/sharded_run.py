"""A whole run, or its weights, in a folder of shards: each rank writes and reads its own part.

What is read goes straight into the run's own tensors, as they are spread now, so that loading needs
no second copy of them, and the number of ranks and the way of sharding may have changed. What there
is to read, the folder's index says; torch alone would leave out silently what it does not name.
"""

import contextlib
import logging
import os
import uuid
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner

from composer.checkpoint.content import (
    IgnoreKeys,
    apply_ignore_keys,
    check_agreement,
)
from composer.checkpoint.download import Source, download_object_or_file, shared_by_node
from composer.checkpoint.required_algorithms import apply_required_algorithms
from composer.checkpoint.shard_index import INDEX_NAME, damaged_shards
from composer.checkpoint.sharded import (
    FileSystemReaderWithValidation,
    FolderWriter,
    KeyPath,
    SafeLoadPlanner,
    files_of_plan,
    flatten,
    read_sharded,
)
from composer.core.logger import Logger
from composer.core.model_state import (
    adopt_optimizer_state,
    get_model_state,
    moments_to_fill,
    set_model_state,
    whole_model_wanted,
)
from composer.core.passes import AlgorithmPass
from composer.core.state import State
from composer.utils import dist
from composer.utils.file_helpers import maybe_create_object_store_from_uri, parse_uri

__all__ = [
    "DistCPObjectStoreReader",
    "Shards",
    "dist_cp_load",
    "load_sharded_checkpoint",
    "read_nested",
    "reader_of_shards",
    "writer_of_run",
]

log = logging.getLogger(__name__)

# Each rank's file holds the same mark of the save that it is of, below this name.
_SAVE_ID = "save_id"


def writer_of_run(content: dict[str, Any], folder: str, group: Any = None) -> FolderWriter:
    """Returns who writes a checkpoint's content to a folder. All ranks call it.

    Args:
        content: What a one-file checkpoint would hold; tensors may be sharded.
        folder: The folder.
        group: As for ``FolderWriter``.
    """
    mark = dist.from_rank_zero(lambda: uuid.uuid4().hex)
    own = {f"rank{dist.get_global_rank()}": mark}
    return FolderWriter({**content, _SAVE_ID: own}, folder, group)


class DistCPObjectStoreReader(FileSystemReaderWithValidation):
    """Reads shards from an object store; each node fetches, once, the files that its ranks need.

    Args:
        source_path: The folder's name in the store, or its address.
        destination_path: A local folder that the node's ranks share.
        object_store: The store, or a logger that gives files back; by default that of the address.
        device_mesh: Not needed: the tensors know theirs.

    Raises:
        ValueError: If there is no store.
    """

    def __init__(
        self,
        source_path: str,
        destination_path: str,
        object_store: Source = None,
        device_mesh: Any = None,
    ) -> None:
        if object_store is None:
            object_store = maybe_create_object_store_from_uri(source_path)
            source_path = parse_uri(source_path)[2]
        if object_store is None:
            raise ValueError(f"object_store is needed to read shards from {source_path}.")
        os.makedirs(destination_path, exist_ok=True)
        super().__init__(destination_path)
        self.source_path = source_path.rstrip("/")
        self.destination_path = destination_path
        self.object_store = object_store
        self.device_mesh = device_mesh

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Fetches and reads the index."""
        self._fetch([INDEX_NAME])
        self.shards_index = super().read_metadata(*args, **kwargs)
        return self.shards_index

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        """Fetches the files that this node needs, and reads what the plan asks for.

        Raises:
            RuntimeError: On all ranks, if one could not fetch a file.
        """
        names = list(files_of_plan(plan, self.storage_data))
        self._fetch(names)
        damaged = set(names) & set(damaged_shards(self.destination_path, self.shards_index))
        if damaged:
            raise FileNotFoundError(
                f"{self.source_path} is not complete: {', '.join(sorted(damaged))} is cut short."
            )
        return super().read_data(plan, planner)

    def _fetch(self, names: list[str]) -> None:
        told = dist.all_gather_object((dist.get_node_rank(), names))
        here = sorted({n for node, ns in told if node == dist.get_node_rank() for n in ns})
        trouble: tuple[bool, str] | None = None
        for name in here[dist.get_local_rank() :: dist.get_local_world_size()]:
            target = os.path.join(self.destination_path, name)
            if trouble is not None or os.path.exists(target):
                continue
            try:
                download_object_or_file(f"{self.source_path}/{name}", target, self.object_store)
            except Exception as error:  # of any kind: the other ranks must know
                log.debug("Fetching %s failed", name, exc_info=True)
                text = f"{name} ({type(error).__name__}: {error})"
                trouble = isinstance(error, FileNotFoundError), text
        found = [one for one in dist.all_gather_object(trouble) if one is not None]
        if found:
            kind = FileNotFoundError if all(is_missing for is_missing, _ in found) else RuntimeError
            texts = "; ".join(text for _, text in found)
            raise kind(f"The sharded checkpoint at {self.source_path} could not be read: {texts}")


class Shards:
    """What a folder holds, by the paths that the parts have in a checkpoint."""

    def __init__(self, reader: FileSystemReaderWithValidation) -> None:
        self.reader = reader
        self.index = reader.read_metadata()
        known = self.index.planner_data or {}
        self.paths: dict[str, KeyPath] = {
            name: _modern(known.get(name, (name,))) for name in self.index.state_dict_metadata
        }

    def leave_out(self, ignore_keys: IgnoreKeys | None) -> None:
        """Forgets what the user does not want."""
        if not ignore_keys:
            return
        leaves = {name: _Unread(name) for name in self.paths if self.paths[name][0] != _SAVE_ID}
        tree = _nested((self.paths[name], leaf) for name, leaf in leaves.items())
        apply_ignore_keys(tree, ignore_keys)
        kept = set(_unread(tree))
        self.paths = {
            name: path for name, path in self.paths.items() if name in kept or path[0] == _SAVE_ID
        }

    def under(self, *start: Any) -> dict[str, KeyPath]:
        """Returns the names of the parts below a path, and what their paths are from there on."""
        length = len(start)
        return {name: path[length:] for name, path in self.paths.items() if path[:length] == start}

    def kind(self, name: str) -> tuple[torch.Size, torch.dtype] | None:
        """Returns the shape and type of a tensor, None for what is none."""
        found = self.index.state_dict_metadata[name]
        if not isinstance(found, TensorStorageMetadata):
            return None
        return found.size, found.properties.dtype

    def empty(self, name: str) -> torch.Tensor | None:
        """Returns room for a part on this host, whole."""
        kind = self.kind(name)
        return None if kind is None else torch.empty(kind[0], dtype=kind[1])

    def read(self, targets: dict[str, Any]) -> dict[str, Any]:
        """Fills tensors, and puts values in the place of None. All ranks call it."""
        planner = SafeLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        read_sharded(targets, self.reader, planner)
        return targets

    def read_nested(self, names: Sequence[str]) -> dict[str, Any]:
        """Returns parts as the nested state that they were."""
        read = self.read({name: self.empty(name) for name in names})
        return _read_in(_listed(_nested((self.paths[name], _Unread(name)) for name in read)), read)

    def names_of_rest(self) -> list[str]:
        """Returns the names of all but weights and moments."""
        large = set(self.under("state", "model")) | set(self.under(_SAVE_ID))
        large.update(
            name for name, path in self.under("state", "optimizers").items() if path[1] == "state"
        )
        return [name for name in self.paths if name not in large]

    def check_one_save(self, source: str, of_all: bool = False) -> None:
        """Refuses files of different saves, which nobody could tell by what is in them.

        Args:
            source: What the files are of, for the error.
            of_all: Look at all files; by default at those that have been read.

        Raises:
            RuntimeError: On all ranks, if such a file was read on any.
        """
        places = {str(k.fqn): str(v.relative_path) for k, v in self.index.storage_data.items()}
        read = self.reader.files_read
        marks = [name for name in self.under(_SAVE_ID) if of_all or places[name] in read]
        found = self.read(dict.fromkeys(marks))
        seen = {
            (places[name], mark)
            for rank in dist.all_gather_object(found)
            for name, mark in rank.items()
        }
        if len({mark for _, mark in seen}) > 1:
            files = ", ".join(f"{name} of save {mark[:8]}" for name, mark in sorted(seen))
            raise RuntimeError(
                f"The files of {source} are of different saves: {files}. Copy the folder again, or "
                "load another checkpoint."
            )


class _Unread:
    """Stands for a part, where it is not to be looked into, or has not been read."""

    def __init__(self, name: str) -> None:
        self.name = name


def _unread(value: Any) -> Iterator[str]:
    if isinstance(value, _Unread):
        yield value.name
    for child in value.values() if isinstance(value, dict) else ():
        yield from _unread(child)


def _read_in(tree: Any, read: dict[str, Any]) -> Any:
    """Puts what was read into its places; it may be a container itself, which stays as it is."""
    if isinstance(tree, _Unread):
        return read[tree.name]
    if isinstance(tree, list):
        return [_read_in(child, read) for child in tree]
    return {key: _read_in(child, read) for key, child in tree.items()}


def _modern(path: KeyPath) -> KeyPath:
    """Returns a path as it is today: the optimizers of old folders stand beside the state."""
    return ("state", *path) if path[0] == "optimizers" else path


def _nested(parts: Any) -> dict[Any, Any]:
    tree: dict[Any, Any] = {}
    for path, value in parts:
        branch = tree
        for key in path[:-1]:
            branch = branch.setdefault(key, {})
        branch[path[-1]] = value
    return tree


def _listed(value: Any) -> Any:
    """Turns dictionaries with numbers for keys into the lists that they were."""
    if not isinstance(value, dict):
        return value
    if value and all(isinstance(key, int) for key in value):
        return [_listed(value[key]) for key in sorted(value)]
    return {key: _listed(child) for key, child in value.items()}


def read_nested(reader: FileSystemReaderWithValidation) -> dict[str, Any]:
    """Returns all that a folder holds, whole, as a one-file checkpoint would hold it."""
    shards = Shards(reader)
    names = [name for name, path in shards.paths.items() if path[0] != _SAVE_ID]
    content = shards.read_nested(names)
    shards.check_one_save(str(reader.path))
    return content


def dist_cp_load(
    state_dict: dict[str, Any],
    storage_reader: FileSystemReaderWithValidation,
    load_planner: LoadPlanner | None = None,
) -> None:
    """Fills a nested state from a folder, in place. All ranks call it.

    Two differences between releases are tolerated: optimizers' ``decoupled_weight_decay``, which
    older folders lack, and the size of CUDA's random state.

    Args:
        state_dict: The state; its tensors are as they are sharded now.
        storage_reader: Reads the folder.
        load_planner: How to map the one on the other; by default by name.
    """
    saved = storage_reader.read_metadata().state_dict_metadata
    leaves, paths = flatten(state_dict)
    for name, value in leaves.items():
        *way, last = paths[name]
        container: Any = state_dict
        for key in way:
            container = container[key]
        size = getattr(saved.get(name), "size", None)
        if last == "decoupled_weight_decay" and name not in saved:
            del container[last]
        elif paths[name][0] == "rng" and size is not None and value.size() != size:
            container[last] = torch.empty(size, dtype=value.dtype)
    read_sharded(state_dict, storage_reader, load_planner)


def load_sharded_checkpoint(
    source_path: str,
    state: State,
    logger: Logger,
    object_store: Source = None,
    load_weights_only: bool = False,
    strict_model_weights: bool = False,
    progress_bar: bool = True,
    ignore_keys: IgnoreKeys | None = None,
    exclude_algorithms: Sequence[str] | None = None,
    algorithm_passes: Sequence[AlgorithmPass] | None = None,
) -> list[dict[str, Any]] | None:
    """Loads a folder of shards into ``state``; returns the random generators' states, one a rank.

    All ranks call it, and each reads only what it needs. For the arguments see
    :func:`composer.checkpoint.whole_run.load_checkpoint`; ``ignore_keys`` as a function is given
    names only, because nothing has been read when it is asked.

    Raises:
        FileNotFoundError: If there is no such folder, or it is not complete.
        ValueError: If ``source_path`` is a file.
        RuntimeError: If the weights do not fit, or ranks or files are of different saves.
    """
    del progress_bar
    with shared_by_node() as scratch:
        reader = reader_of_shards(source_path, object_store, scratch)
        shards = Shards(reader)
        weights = set(shards.under("state", "model"))
        shards.leave_out(ignore_keys)
        strict = strict_model_weights and weights == set(shards.under("state", "model"))
        names = shards.names_of_rest()
        if load_weights_only:
            wanted = "algorithms", "integrations"
            names = [name for part in wanted for name in shards.under("state", part)]
        content = shards.read_nested(names)
        saved = content.get("state", {})
        apply_required_algorithms(state, logger, saved, exclude_algorithms, algorithm_passes)
        if load_weights_only:
            state.check_base(saved)
        _load_weights(state, shards, strict)
        if not load_weights_only:
            groups = saved.pop("optimizers", {})
            _load_optimizers(state, shards, groups)
            state.load_state_dict(saved, logger, strict=strict)
            check_agreement(state, source_path)
        shards.check_one_save(source_path)
    log.info("Loaded checkpoint %s", source_path)
    return None if load_weights_only else content.get("rng")


def reader_of_shards(
    source_path: str, object_store: Source, scratch: str
) -> FileSystemReaderWithValidation:
    """Returns who reads a folder of shards. All ranks call it.

    Args:
        source_path: The folder, or its name in a store.
        object_store: The store, None for a folder on disk.
        scratch: A folder that the node's ranks share, for what is fetched.

    Raises:
        FileNotFoundError: If there is no such folder, or it is not complete.
        ValueError: If it is a file.
    """
    if object_store is not None:
        return DistCPObjectStoreReader(source_path, scratch, object_store)
    folder = os.path.realpath(source_path)
    if not os.path.exists(folder):
        raise FileNotFoundError(f"There is no checkpoint at {source_path}.")
    if not os.path.isdir(folder):
        raise ValueError(f"{source_path} is a file; a sharded checkpoint is a folder.")
    if not Path(folder, INDEX_NAME).exists():
        raise FileNotFoundError(
            f"{source_path} has no {INDEX_NAME}, so its save did not end and it is no checkpoint."
        )
    reader = FileSystemReaderWithValidation(folder)
    damaged = damaged_shards(folder, reader.read_metadata()) if dist.get_global_rank() == 0 else []
    damaged = dist.all_gather_object(damaged)[0]
    if damaged:
        raise FileNotFoundError(
            f"{source_path} is not complete: {', '.join(damaged)} is missing or cut short."
        )
    return reader


def _load_weights(state: State, shards: Shards, strict: bool) -> None:
    names = {".".join(map(str, path)): n for n, path in shards.under("state", "model").items()}
    if not names:
        return
    base = state.names_of_base(names)
    with contextlib.nullcontext() if base is None else whole_model_wanted(state.model):
        own = get_model_state(state.model)
    targets = own if base is None else {plain: own[name] for name, plain in base.items()}
    missing = [name for name in targets if name not in names]
    unexpected = [name for name in names if name not in targets]
    shapes = [
        f"{name}: {tuple(kind[0])} in the checkpoint, {tuple(target.size())} in the model"
        for name, target in targets.items()
        if name in names
        and (kind := shards.kind(names[name])) is not None
        and kind[0] != target.size()
    ]
    problems = list(_problems(missing, unexpected, shapes))
    if shapes or (strict and problems):
        raise RuntimeError(
            f"Error(s) in loading state_dict for {type(state.model).__name__}: "
            + " ".join(problems)
        )
    if problems:
        warnings.warn(f"The checkpoint does not fit the model. {' '.join(problems)}", stacklevel=3)
    read = shards.read({names[name]: targets[name] for name in targets if name in names})
    for name, plain in (base or {}).items():
        if own[name] is not targets[plain]:  # what is trained whole starts as a copy of the base's
            own[name].copy_(targets[plain])
    # Values that are no tensors, which few modules have, are put in by the model itself.
    values = {n: read[names[n]] for n in targets if n in names and shards.kind(names[n]) is None}
    if values:
        set_model_state(state.model, values, strict=False)


def _problems(missing: list[str], unexpected: list[str], shapes: list[str]) -> Iterator[str]:
    if missing:
        yield f"Missing key(s) in state_dict: {', '.join(missing)}."
    if unexpected:
        yield f"Unexpected key(s) in state_dict: {', '.join(unexpected)}."
    if shapes:
        yield f"Size mismatch: {'; '.join(shapes)}."


def _load_optimizers(state: State, shards: Shards, groups: dict[str, Any]) -> None:
    for optimizer in state.optimizers:
        name = type(optimizer).__qualname__
        if name not in groups:
            warnings.warn(
                f"optimizers: {name} is not in the state_dict. Its state will not be restored.",
                stacklevel=3,
            )
            continue
        # An optimizer that keeps nothing, or has not stepped yet, left an empty dictionary.
        moments = {n: w for n, w in shards.under("state", "optimizers", name, "state").items() if w}
        kinds: dict[str, dict[str, Any]] = {}
        names: dict[tuple[str, str], str] = {}
        for shard, (parameter, *way) in moments.items():
            key = ".".join(map(str, way))
            kinds.setdefault(parameter, {})[key] = shards.kind(shard)
            names[parameter, key] = shard
        empty = moments_to_fill(state.model, optimizer, kinds)
        read = shards.read(
            {names[p, key]: value for p, parts in empty.items() for key, value in parts.items()}
        )
        filled = {p: {key: read[names[p, key]] for key in parts} for p, parts in empty.items()}
        adopt_optimizer_state(state.model, optimizer, filled, groups[name]["param_groups"])
