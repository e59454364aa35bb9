"""A whole run, or its weights, saved to one file and loaded again: what the Trainer calls."""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from composer.checkpoint.background_save import BackgroundSave
from composer.checkpoint.content import (
    IgnoreKeys,
    apply_ignore_keys,
    check_agreement,
    full_state,
    storages_of_run,
    weights_state,
)
from composer.checkpoint.download import (
    Source,
    download_object_or_file,
    has_shards,
    shared_by_node,
    without_text_link,
)
from composer.checkpoint.monolithic import (
    STATES_FILENAME,
    is_plain,
    safe_torch_load,
    unpack,
    write_checkpoint_file,
)
from composer.checkpoint.naming import (
    DEFAULT_FILENAME,
    format_name_of_rank_zero,
    get_save_filename,
    is_tar,
    sharded_template,
)
from composer.checkpoint.required_algorithms import apply_required_algorithms
from composer.core.logger import Logger
from composer.core.passes import AlgorithmPass
from composer.core.state import State
from composer.utils import dist
from composer.utils.file_helpers import is_uri
from composer.utils.lazy import handed_on
from composer.utils.phases import phase

__all__ = [
    "download_checkpoint",
    "download_object_or_file",
    "Save",
    "load_checkpoint",
    "path_of_save",
    "prepare_save",
    "save_checkpoint",
    "shared_by_node",
]

log = logging.getLogger(__name__)

# torch's checkpoint API takes half a second to import, which only runs with shards should pay.
_of_shards = handed_on(
    {
        "load_sharded_checkpoint": "composer.checkpoint.sharded_run",
        "writer_of_run": "composer.checkpoint.sharded_run",
    }
)


class Save:
    """One save of a run, which is still to be written.

    Args:
        path: The file or folder that will appear.
        write: Writes what this rank has to write.
        names_of_files: Returns the names of a folder's files, on rank 0 once they are written.
    """

    def __init__(
        self,
        path: str,
        write: Callable[[], Any],
        names_of_files: Callable[[], list[str]] | None = None,
    ) -> None:
        self.path = path
        self.is_folder = names_of_files is not None
        self._write = write
        self._names_of_files = names_of_files

    def write(self) -> str | None:
        """Writes; returns the path on ranks that wrote something and None on the others."""
        self._write()
        log.debug("Saved checkpoint %s", self.path)
        return self.path if self.is_folder or dist.get_global_rank() == 0 else None

    def remote_files(
        self, remote_name: str
    ) -> tuple[dict[str, str], list[str], tuple[str, str] | None]:
        """Returns what is to be in a store, under a name, once this has been written.

        Returns:
            This rank's files by their names in the store; on rank 0, the names of all ranks' files,
            and name and path of a folder's index, which goes there last.
        """
        if self._names_of_files is None:
            return {remote_name: self.path}, [remote_name], None
        mine = Path(self.path).glob(f"__{dist.get_global_rank()}_*")
        own = {f"{remote_name}/{path.name}": str(path) for path in mine}
        *shards, index = self._names_of_files() or [None]
        if index is None:
            return own, [], None
        names = [f"{remote_name}/{name}" for name in shards]
        return own, names, (f"{remote_name}/{index}", str(Path(self.path, index)))


def path_of_save(state: State, filename: str) -> str:
    """Returns the file, or in its place the folder, that saving under a template makes now."""
    if state.fsdp_sharded_state_dict_enabled:
        template = format_name_of_rank_zero(sharded_template(state, filename), state.run_name)
        return get_save_filename(state, template)
    return get_save_filename(state, filename)


def prepare_save(
    state: State,
    filename: str,
    *,
    weights_only: bool = False,
    ignore_keys: IgnoreKeys | None = None,
    background: BackgroundSave | None = None,
) -> Save:
    """Collects what is to be saved. All ranks call it.

    Args:
        state: The run's State.
        filename: As for ``save_checkpoint``, and so are the next two.
        weights_only: Save the weights and the model's metadata only.
        ignore_keys: What to leave out.
        background: Copies what is to be saved, so that it may be written while training goes on.
    """
    content = weights_state(state) if weights_only else full_state(state)
    apply_ignore_keys(content, ignore_keys)
    path = path_of_save(state, filename)
    if state.fsdp_sharded_state_dict_enabled:
        group = None if background is None else background.group
        writer = _of_shards("writer_of_run")(content, path, group)
        if background is not None:
            writer.stage(background.staging.copy)
            background.staging.synchronize()
        return Save(path, writer.write, lambda: writer.files)
    if background is None:
        return Save(path, lambda: dist.from_rank_zero(lambda: write_checkpoint_file(content, path)))
    if dist.get_global_rank() != 0:
        return Save(path, lambda: None)
    # What was gathered from all ranks is a copy already.
    only = storages_of_run(state) if state.fsdp_enabled else None
    copied = background.staging.copy_nested(content, only)
    background.staging.synchronize()
    return Save(path, lambda: write_checkpoint_file(copied, path))


@phase("saving a checkpoint")
def save_checkpoint(
    state: State,
    filename: str = DEFAULT_FILENAME,
    *,
    weights_only: bool = False,
    ignore_keys: IgnoreKeys | None = None,
) -> str | None:
    """Saves the run; returns its path on the ranks that wrote something and None on the others.

    All ranks call it. When it returns, the file is whole and on the disk: the process may be killed
    at any moment, and the name holds the old checkpoint or the new one. If one rank cannot write,
    all ranks raise.

    A sharded model whose ``state_dict_type`` is ``sharded`` is saved to a folder, to which each
    rank writes its own part: ``sharded_ckpt_prefix_dir``, beside where the file would be.

    Args:
        state: The run's State.
        filename: The path, with placeholders of ``FORMAT_NAME_WITH_DIST_AND_TIME_TABLE``. Its
            ending says the form: ``.pt``, ``.pt.<compressor>`` or a tarball.
        weights_only: Save the weights and the model's metadata only.
        ignore_keys: What to leave out: globs of ``/``-joined paths, or a function that changes the
            content in place.
    """
    how: dict[str, Any] = {"weights_only": weights_only, "ignore_keys": ignore_keys}
    return prepare_save(state, filename, **how).write()


def load_checkpoint(
    path: str,
    state: State,
    logger: Logger,
    object_store: Source = None,
    load_weights_only: bool = False,
    strict_model_weights: bool = True,
    progress_bar: bool = True,
    ignore_keys: IgnoreKeys | None = None,
    exclude_algorithms: Sequence[str] | None = None,
    algorithm_passes: Sequence[AlgorithmPass] | None = None,
) -> list[dict[str, Any]] | None:
    """Loads a checkpoint into ``state`` and returns the random generators' states, one a rank.

    All ranks call it. What the file names is not imported or run (see ``SAFE_GLOBALS``).

    Args:
        path: A local path, a web address, an object store's address, or with ``object_store`` a
            name in it; of a file, or of a folder of shards. ``{run_name}`` is filled in, and ranks
            as rank 0 would.
        state: Takes what is loaded.
        logger: The run's Logger, for algorithms that change the model.
        object_store: A store, or a logger destination that can download.
        load_weights_only: Load the weights and nothing else.
        strict_model_weights: Whether weights too few or too many are an error (both are listed) or
            a warning. Not strict if ``ignore_keys`` took weights out.
        progress_bar: Show the progress of a download.
        ignore_keys: What not to load: globs of ``/``-joined paths, or a function that changes the
            content in place.
        exclude_algorithms: Algorithms not to apply again, though the checkpoint's model had them.
        algorithm_passes: The engine's passes.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointContentError: If the file names something outside the fixed list, or is damaged.
        RuntimeError: If the weights do not fit, or the ranks loaded different times.
    """
    path = format_name_of_rank_zero(path, state.run_name)
    folder_of_shards, source = has_shards(path, object_store)
    if folder_of_shards is not None:
        return _of_shards("load_sharded_checkpoint")(
            folder_of_shards,
            state,
            logger,
            object_store=source,
            load_weights_only=load_weights_only,
            strict_model_weights=strict_model_weights,
            progress_bar=progress_bar,
            ignore_keys=ignore_keys,
            exclude_algorithms=exclude_algorithms,
            algorithm_passes=algorithm_passes,
        )
    with shared_by_node() as folder:
        alone = state.load_monolith_rank0_only
        plain, *_ = download_checkpoint(path, folder, object_store, progress_bar, alone)
        content = _read(plain, alone)
    weight_names = _weight_names(content)
    apply_ignore_keys(content, ignore_keys)
    strict = strict_model_weights and weight_names == _weight_names(content)
    saved = content.get("state", {})
    apply_required_algorithms(state, logger, saved, exclude_algorithms, algorithm_passes)
    if load_weights_only:
        if "model" in saved:
            state.load_model_state(saved, logger, strict=strict)
        return None
    state.load_state_dict(saved, logger, strict=strict)
    check_agreement(state, path)
    log.info("Loaded checkpoint %s", path)
    return content.get("rng")


def _read(path: str, rank_zero_only: bool) -> dict[str, Any]:
    """Reads a file, if asked on rank 0 alone: the others get the names of what is to come."""
    content = safe_torch_load(path, load_monolith_rank0_only=rank_zero_only)
    if not rank_zero_only:
        return content
    saved = content["state"]
    names = [list(saved[part] or ()) for part in ("model", "optimizers") if part in saved]
    names = dist.all_gather_object(names)[0]
    if dist.get_global_rank() != 0 and "model" in saved:
        saved["model"] = dict.fromkeys(names.pop(0))
    if dist.get_global_rank() != 0 and "optimizers" in saved:
        saved["optimizers"] = {name: {"state": {}, "param_groups": []} for name in names.pop(0)}
    return content


def _weight_names(content: dict[str, Any]) -> set[str]:
    return set(content.get("state", {}).get("model", {}))


def download_checkpoint(
    path: str,
    node_checkpoint_folder: str,
    object_store: Source,
    progress_bar: bool,
    rank_zero_only: bool = False,
) -> tuple[str, str | None, bool]:
    """Makes a checkpoint available to a node's ranks, as a plain ``torch.save`` file.

    All ranks call it; local rank 0 fetches the file and unpacks it, if it has to be.

    Args:
        path: As for :func:`load_checkpoint`, without placeholders.
        node_checkpoint_folder: A folder that the node's ranks share; for what is fetched and
            unpacked.
        object_store: As for :func:`load_checkpoint`.
        progress_bar: Show the progress of a download.
        rank_zero_only: Only rank 0 will read it, so other nodes need not have it.

    Returns:
        The path of the plain file; the folder into which a tarball was unpacked, or None; and
        whether the file is this rank's own, which it never is: it was rank 0 that saved it.
    """
    is_local = object_store is None and not is_uri(path)
    name = os.path.basename(path.removesuffix(".symlink"))  # its ending says the file's form
    fetched = os.path.join(node_checkpoint_folder, name)
    source = os.path.realpath(without_text_link(path)) if is_local else fetched
    unpacked = os.path.join(node_checkpoint_folder, STATES_FILENAME)
    with dist.busy_wait_for_local_rank_zero(node_checkpoint_folder):
        if dist.get_global_rank() == 0 or (dist.get_local_rank() == 0 and not rank_zero_only):
            if not is_local:
                download_object_or_file(path, fetched, object_store, progress_bar)
            if not is_plain(source):
                unpack(source, unpacked)
    plain = source if is_plain(source) else unpacked
    return plain, node_checkpoint_folder if is_tar(source) else None, False
