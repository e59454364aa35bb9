"""Saves a run when somebody outside asks for it: by a signal or by touching a file."""

import logging
import os
import signal
import sys
import time
import warnings
from types import FrameType
from typing import Any

import torch

from composer.callbacks.checkpoint_saver import CheckpointSaver
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils import dist
from composer.utils.file_names import format_name_with_dist

log = logging.getLogger(__name__)

_SAME_REQUEST_SECONDS = 10
_NOTHING, _SAVE, _SAVE_AND_LEAVE = 0, 1, 2
_REQUESTS = {signal.SIGTERM: _SAVE_AND_LEAVE}
if hasattr(signal, "SIGUSR1"):  # Windows has none
    _REQUESTS[signal.SIGUSR1] = _SAVE


class CheckpointNow(Callback):
    """Saves a checkpoint at the end of the batch in which it is asked to, on all ranks together.

    SIGUSR1 and a touched file save, and training goes on. SIGTERM, which clusters send some seconds
    before they kill, saves and then leaves as SIGTERM does without this callback: everything is
    closed, and the exit code (143) tells that the run is not finished. One rank that hears of it is
    enough. A further SIGTERM leaves at once if it comes ten seconds later or more: earlier ones are
    the same request, which reaches a rank from the cluster and through its launcher. The checkpoint
    is one of the run's CheckpointSaver, so that ``autoresume`` goes on from it; a run without one
    saves into ``{run_name}/checkpoints``. An evaluation between two batches is finished first.

    Args:
        touch_file: Saves whenever this file, which rank 0 sees, appears or is touched; with
            placeholders, None for no file.
    """

    def __init__(self, touch_file: str | None = "{run_name}/checkpoint_now") -> None:
        self.touch_file = touch_file
        self._own_saver: CheckpointSaver | None = None
        self._heard: list[int] = []  # a list, because a handler may run between any two steps
        self._terminated_at: float | None = None
        self._last_touched: int | None = None
        self._previous: dict[int, Any] = {}

    def fit_start(self, state: State, logger: Logger) -> None:
        """Begins to listen."""
        self._heard.clear()
        self._terminated_at = None
        self._last_touched = self._touched(state)
        try:
            for number in _REQUESTS:
                self._previous.setdefault(number, signal.signal(number, self._on_signal))
        except ValueError:  # Python lets only the main thread set handlers
            warnings.warn(
                "CheckpointNow does not hear signals, because training does not run in the main "
                "thread; it saves only when the file is touched.",
                stacklevel=2,
            )

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Saves, if a rank was asked to."""
        self._answer(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Answers what came since the last batch, and stops listening."""
        self._answer(state, logger)
        self._restore_handlers()

    def close(self, state: State, logger: Logger) -> None:
        """Stops listening."""
        self._restore_handlers()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            now = time.monotonic()
            if self._terminated_at is None:
                self._terminated_at = now
            elif now - self._terminated_at >= _SAME_REQUEST_SECONDS:
                self._leave()
        self._heard.append(_REQUESTS[signal.Signals(number)])

    def _touched(self, state: State) -> int | None:
        """Returns when the file was last touched; None if there is none."""
        if self.touch_file is None or dist.get_global_rank() != 0:
            return None
        try:
            return os.stat(format_name_with_dist(self.touch_file, state.run_name)).st_mtime_ns
        except FileNotFoundError:
            return None

    def _answer(self, state: State, logger: Logger) -> None:
        touched = self._touched(state)
        if touched is not None and touched != self._last_touched:
            self._heard.append(_SAVE)
        self._last_touched = touched
        taken = list(self._heard)
        del self._heard[: len(taken)]
        asked = max(taken, default=_NOTHING)
        if dist.get_world_size() > 1:
            loudest = state.device.tensor_to_device(torch.tensor(asked))
            dist.all_reduce(loudest, "MAX")
            asked = int(loudest.item())
        if asked == _NOTHING:
            return
        log.warning("Asked to save at batch %d.", state.timestamp.batch.value)
        saver = self._saver_of(state, logger)
        if saver.last_checkpoint_batch != state.timestamp.batch:
            saver._save_checkpoint(state, logger)
        if asked == _SAVE_AND_LEAVE:
            self._leave()
            state.stop_training()  # the program has a handler of its own, which came back

    def _saver_of(self, state: State, logger: Logger) -> CheckpointSaver:
        of_run = next((c for c in state.callbacks if isinstance(c, CheckpointSaver)), None)
        if of_run is not None:
            return of_run
        if self._own_saver is None:
            self._own_saver = CheckpointSaver(overwrite=True)
            self._own_saver.init(state, logger)
        return self._own_saver

    def _leave(self) -> None:
        previous = self._previous.get(signal.SIGTERM)
        self._restore_handlers()
        if callable(previous):
            previous(signal.SIGTERM, None)
        else:
            sys.exit(128 + signal.SIGTERM)

    def _restore_handlers(self) -> None:
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, previous)
        self._previous.clear()
