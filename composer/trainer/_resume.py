"""What a run starts from: the newest complete checkpoint of its own, or one that is named."""

import logging
from typing import Any

from composer.checkpoint.autoresume import find_autoresume_checkpoint
from composer.checkpoint.load import load_checkpoint
from composer.trainer._options import CheckpointOptions, TrainerOptions
from composer.trainer._run import Run
from composer.trainer._run_name import given_run_name

log = logging.getLogger(__name__)


def resume(run: Run, options: TrainerOptions) -> None:
    """Loads the checkpoint that autoresume finds, otherwise ``load_path``, if there is one."""
    checkpoint = options.checkpoint
    found = _find(run, options) if checkpoint.autoresume else None
    if found is not None:
        log.info("Autoresume continues the run from %s.", found)
        run.was_autoresumed = True
        _load(run, found, load_object_store=None)
    elif checkpoint.load_path is not None:
        _load(
            run,
            checkpoint.load_path,
            load_object_store=checkpoint.load_object_store,
            load_weights_only=checkpoint.load_weights_only,
            strict_model_weights=checkpoint.load_strict_model_weights,
            progress_bar=checkpoint.load_progress_bar,
            ignore_keys=checkpoint.load_ignore_keys,
            exclude_algorithms=checkpoint.load_exclude_algorithms,
        )


def _find(run: Run, options: TrainerOptions) -> str | None:
    _check_autoresume(run, options.checkpoint, options.logging.run_name)
    saver = run.saver
    assert saver is not None and saver.latest_filename is not None
    return find_autoresume_checkpoint(
        saver.folder,
        saver.latest_filename.filename,
        run.state.run_name,
        filename=saver.filename.filename,
        overwrite=saver.overwrite,
    )


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


def _load(run: Run, path: str, load_object_store: Any, **how: Any) -> None:
    state = run.state
    run_name = state.run_name
    run.rng_state = load_checkpoint(
        path=path, state=state, logger=run.engine.logger, object_store=load_object_store, **how
    )
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
