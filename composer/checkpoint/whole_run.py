"""A whole run, or its weights, saved to one file and loaded again: what the Trainer calls."""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from composer.checkpoint.content import IgnoreKeys, apply_ignore_keys, full_state, weights_state
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
)
from composer.checkpoint.required_algorithms import apply_required_algorithms
from composer.core.logger import Logger
from composer.core.logger_destination import LoggerDestination
from composer.core.passes import AlgorithmPass
from composer.core.state import State
from composer.utils import dist
from composer.utils.file_helpers import get_file, is_uri
from composer.utils.object_store.object_store import ObjectStore, ObjectStoreTransientError
from composer.utils.retrying import retry

__all__ = [
    "download_checkpoint",
    "download_object_or_file",
    "load_checkpoint",
    "save_checkpoint",
    "shared_by_node",
]

log = logging.getLogger(__name__)

Source = ObjectStore | LoggerDestination | None


def save_checkpoint(
    state: State,
    filename: str = DEFAULT_FILENAME,
    *,
    weights_only: bool = False,
    ignore_keys: IgnoreKeys | None = None,
) -> str | None:
    """Saves the run; returns the file's path on the rank that wrote it and None on the others.

    All ranks call it. When it returns, the file is whole and on the disk: the process may be killed
    at any moment, and the name holds the old checkpoint or the new one. If rank 0 cannot write, all
    ranks raise.

    Args:
        state: The run's State.
        filename: The path, with placeholders of ``FORMAT_NAME_WITH_DIST_AND_TIME_TABLE``. Its
            ending says the form: ``.pt``, ``.pt.<compressor>`` or a tarball.
        weights_only: Save the weights and the model's metadata only.
        ignore_keys: What to leave out: globs of ``/``-joined paths, or a function that changes the
            content in place.

    Raises:
        ValueError: If the State asks for sharded checkpoints, which are folders.
    """
    if state.fsdp_sharded_state_dict_enabled:
        raise ValueError(
            "state_dict_type='sharded' asks for a folder of shards, and this writes one file: set "
            "state_dict_type: full in parallelism_config['fsdp'] or ['fsdp2'].",
        )
    content = weights_state(state) if weights_only else full_state(state)
    apply_ignore_keys(content, ignore_keys)
    path = get_save_filename(state, filename)
    dist.from_rank_zero(lambda: write_checkpoint_file(content, path))
    log.debug("Saved checkpoint %s", path)
    return path if dist.get_global_rank() == 0 else None


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
            name in it. ``{run_name}`` is filled in, and ranks as rank 0 would.
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
    with shared_by_node() as folder:
        plain, _folder, _of_rank = download_checkpoint(path, folder, object_store, progress_bar)
        content = safe_torch_load(plain)
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
    _check_agreement(state, path)
    log.info("Loaded checkpoint %s", path)
    return content.get("rng")


def _weight_names(content: dict[str, Any]) -> set[str]:
    return set(content.get("state", {}).get("model", {}))


def _check_agreement(state: State, path: str) -> None:
    batches = dist.all_gather_object(int(state.timestamp.batch))
    if len(set(batches)) > 1:
        raise RuntimeError(
            f"Timestamp mismatch error: after loading {path}, the ranks stand at batches "
            f"{batches}. Give all ranks the same checkpoint.",
        )


@contextlib.contextmanager
def shared_by_node() -> Iterator[str]:
    """Gives the body a temporary folder, the same one to all ranks of a node."""
    mine = tempfile.mkdtemp(prefix="composer_checkpoint_") if dist.get_local_rank() == 0 else None
    folders = dist.all_gather_object((dist.get_node_rank(), mine))
    folder = next(
        found for node, found in folders if node == dist.get_node_rank() and found is not None
    )
    try:
        yield folder
        dist.barrier()  # the node's other ranks may still be reading
    finally:
        if mine is not None:
            shutil.rmtree(mine, ignore_errors=True)


def download_checkpoint(
    path: str, node_checkpoint_folder: str, object_store: Source, progress_bar: bool
) -> tuple[str, str | None, bool]:
    """Makes a checkpoint available to a node's ranks, as a plain ``torch.save`` file.

    All ranks call it; local rank 0 fetches the file and unpacks it, if it has to be.

    Args:
        path: As for :func:`load_checkpoint`, without placeholders.
        node_checkpoint_folder: A folder that the node's ranks share; for what is fetched and
            unpacked.
        object_store: As for :func:`load_checkpoint`.
        progress_bar: Show the progress of a download.

    Returns:
        The path of the plain file; the folder into which a tarball was unpacked, or None; and
        whether the file is this rank's own, which it never is: it was rank 0 that saved it.
    """
    is_local = object_store is None and not is_uri(path)
    name = os.path.basename(path.removesuffix(".symlink"))  # its ending says the file's form
    fetched = os.path.join(node_checkpoint_folder, name)
    source = os.path.realpath(_without_text_link(path)) if is_local else fetched
    unpacked = os.path.join(node_checkpoint_folder, STATES_FILENAME)
    with dist.busy_wait_for_local_rank_zero(node_checkpoint_folder):
        if dist.get_local_rank() == 0:
            if not is_local:
                download_object_or_file(path, fetched, object_store, progress_bar)
            if not is_plain(source):
                unpack(source, unpacked)
    plain = source if is_plain(source) else unpacked
    return plain, node_checkpoint_folder if is_tar(source) else None, False


@retry(ObjectStoreTransientError, num_attempts=5)
def download_object_or_file(
    object_name: str, file_destination: str, object_store: Source, progress_bar: bool = False
) -> None:
    """Fetches a file from wherever it is; trouble that may pass is tried again.

    Args:
        object_name: A path, an address or, with ``object_store``, a name in it.
        file_destination: Where the file is to appear.
        object_store: A store, or a logger destination that can download.
        progress_bar: Show the progress.
    """
    get_file(object_name, file_destination, object_store, progress_bar=progress_bar)


def _without_text_link(path: str) -> str:
    """Follows ``.symlink`` text files, as object stores hold them and as copies of them do."""
    for name in (path, path + ".symlink"):
        if name.endswith(".symlink") and os.path.isfile(name):
            with open(name) as file:
                return file.read().strip()
    return path
