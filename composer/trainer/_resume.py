"""What a run starts from: the newest complete checkpoint of its own, or one that is named."""

import logging
from dataclasses import replace
from typing import Any

from composer.checkpoint import whole_run as checkpoint
from composer.checkpoint.autoresume import (
    find_autoresume_checkpoint,
    find_remote_checkpoint,
    is_later,
)
from composer.core.logger_destination import LoggerDestination
from composer.trainer._options import CheckpointOptions, TrainerOptions
from composer.trainer._run import Run
from composer.trainer._run_name import given_run_name
from composer.utils.phases import phase

log = logging.getLogger(__name__)


@phase("loading the checkpoint")
def resume(run: Run, options: TrainerOptions) -> None:
    """Loads the checkpoint that autoresume finds, otherwise ``load_path``, if there is one."""
    wanted = options.checkpoint
    run.state.autoresume = wanted.autoresume
    _check_names_in_stores(run)
    found = _find(run, options) if wanted.autoresume else None
    if found is not None:
        path, store = found
        log.info("Autoresume continues the run from %s.", path)
        run.was_autoresumed = True
        wanted = replace(
            wanted,
            load_path=path,
            load_object_store=store,
            load_weights_only=False,
            load_ignore_keys=None,
            load_exclude_algorithms=None,
        )
    if wanted.load_path is not None:
        _load(run, wanted.load_path, wanted)


def _check_names_in_stores(run: Run) -> None:
    """Refuses destinations that rename files while a ``latest`` file is to name one of them."""
    if run.saver is None or run.saver.latest_filename is None:
        return
    for destination in run.engine.logger.destinations:
        form = getattr(destination, "file_path_format_string", "{remote_file_name}")
        if form != "{remote_file_name}":
            raise ValueError(
                "Specifying a `file_path_format_string` to a `RemoteUploaderDownloader` is not "
                f"currently supported while using `save_latest_filename`, and it is {form!r}: the "
                "latest file would not name what is in the store. Put the folder into "
                "`save_folder`, or set save_latest_filename=None."
            )


def _find(run: Run, options: TrainerOptions) -> tuple[str, Any] | None:
    """Returns the run's newest checkpoint and the store that it is in, None for a local one."""
    _check_autoresume(run, options.checkpoint, options.logging.run_name)
    saver, run_name = run.saver, run.state.run_name
    assert saver is not None and saver.latest_filename is not None
    templates = saver.templates(run.state)
    path = find_autoresume_checkpoint(
        saver.folder,
        saver.latest_filename.filename,
        run_name,
        filename=templates,
        overwrite=saver.overwrite,
    )
    remote = _find_remote(run)
    if remote is None or (path is not None and not is_later(remote[0], path, templates, run_name)):
        return None if path is None else (path, None)
    return remote


def _find_remote(run: Run) -> tuple[str, Any] | None:
    """Returns the newest checkpoint that the run's stores have whole, and its store."""
    saver, run_name = run.saver, run.state.run_name
    if saver is None or saver.latest_remote_file_name is None:
        return None
    destinations = [d for d in run.engine.logger.destinations if isinstance(d, LoggerDestination)]
    sources = [getattr(destination, "remote_backend", destination) for destination in destinations]
    if saver.remote_uploader is not None:
        sources.append(saver.remote_uploader.remote_backend)
    return find_remote_checkpoint(saver.latest_remote_file_name.filename, run_name, sources)


def _check_autoresume(run: Run, options: CheckpointOptions, run_name: str | None) -> None:
    if given_run_name(run_name) is None:
        raise ValueError(
            "autoresume=True needs a `run_name`, to know the run again when it is restarted; give "
            "run_name, or set COMPOSER_RUN_NAME."
        )
    if run.saver is None:
        raise ValueError(
            "autoresume=True needs a `save_folder` (or a CheckpointSaver callback), to look for "
            "checkpoints in."
        )
    if run.saver.latest_filename is None:
        raise ValueError(
            "autoresume=True needs a `save_latest_filename`, and it is "
            f"{options.save_latest_filename!r}; leave it at its default."
        )
    for destination in run.engine.logger.destinations:
        uploads = getattr(destination, "num_concurrent_uploads", 1)
        if uploads != 1:
            raise ValueError(
                "Multiple concurrent uploads is not currently supported when using autoresume, and "
                f"a {type(destination).__name__} has num_concurrent_uploads={uploads}: the latest "
                "file could arrive before its checkpoint. Set it to 1."
            )


def _load(run: Run, path: str, options: CheckpointOptions) -> None:
    state = run.state
    run_name = state.run_name
    run.rng_state = checkpoint.load_checkpoint(
        path=path,
        state=state,
        logger=run.engine.logger,
        object_store=options.load_object_store,
        load_weights_only=options.load_weights_only,
        strict_model_weights=options.load_strict_model_weights,
        progress_bar=options.load_progress_bar,
        ignore_keys=options.load_ignore_keys,
        exclude_algorithms=options.load_exclude_algorithms,
        algorithm_passes=run.engine.algorithm_passes,
    )
    run.position_is_loaded = not options.load_weights_only
    state.run_name = run_name
    state.load_path = path
    _mend_old_timestamp(run)


def _mend_old_timestamp(run: Run) -> None:
    """Fills the counters within an iteration, which old checkpoints lack."""
    timestamp = run.state.timestamp
    within = int(timestamp.epoch_in_iteration), int(timestamp.token_in_iteration)
    if int(timestamp.iteration) == 0 and within == (0, 0):
        run.state.timestamp = timestamp.copy(
            epoch_in_iteration=timestamp.epoch, token_in_iteration=timestamp.token
        )
