"""Loading a run, or only its weights, from one file."""

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from composer.checkpoint.monolithic import opened_plain, safe_torch_load
from composer.checkpoint.naming import format_name_of_rank_zero
from composer.checkpoint.required_algorithms import apply_required_algorithms
from composer.checkpoint.state_dict import IgnoreKeys, apply_ignore_keys
from composer.core.logger import Logger
from composer.core.logger_destination import LoggerDestination
from composer.core.passes import AlgorithmPass
from composer.core.state import State
from composer.utils import dist
from composer.utils.file_helpers import get_file, is_uri
from composer.utils.object_store.object_store import ObjectStore

__all__ = ["load_checkpoint"]

log = logging.getLogger(__name__)


def load_checkpoint(
    path: str,
    state: State,
    logger: Logger,
    object_store: ObjectStore | LoggerDestination | None = None,
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
    with _local_copy(path, object_store, progress_bar) as local, opened_plain(local) as plain:
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
def _local_copy(
    path: str,
    object_store: ObjectStore | LoggerDestination | None,
    progress_bar: bool,
) -> Iterator[str]:
    """Gives the body a local path; what is elsewhere is downloaded once a node."""
    if object_store is None and not is_uri(path):
        yield os.path.realpath(_without_text_link(path))
        return
    mine = tempfile.mkdtemp(prefix="composer_checkpoint_") if dist.get_local_rank() == 0 else None
    folders = dist.all_gather_object((dist.get_node_rank(), mine))
    folder = next(
        found for node, found in folders if node == dist.get_node_rank() and found is not None
    )
    # The name's ending says the form of the file.
    destination = os.path.join(folder, os.path.basename(path.removesuffix(".symlink")))
    try:
        with dist.busy_wait_for_local_rank_zero(folder):
            if mine is not None:
                get_file(path, destination, object_store, progress_bar=progress_bar)
        yield destination
        dist.barrier()  # the node's other ranks may still be reading
    finally:
        if mine is not None:
            shutil.rmtree(mine, ignore_errors=True)


def _without_text_link(path: str) -> str:
    """Follows ``.symlink`` text files, as object stores hold them and as copies of them do."""
    for name in (path, path + ".symlink"):
        if name.endswith(".symlink") and os.path.isfile(name):
            with open(name) as file:
                return file.read().strip()
    return path
