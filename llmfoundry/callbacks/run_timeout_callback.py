"""An end to a run that has finished training but does not end."""

import logging
import os
import signal
import threading

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from llmfoundry.utils.exceptions import RunTimeoutError

__all__ = ["RunTimeoutCallback"]

log = logging.getLogger(__name__)


def _interrupt(timeout: int) -> None:
    log.error("%s", RunTimeoutError(timeout=timeout))
    os.kill(os.getpid(), signal.SIGINT)


class RunTimeoutCallback(Callback):
    """Interrupts the process when what follows training takes too long, such as a hung upload.

    Args:
        timeout: Seconds from the end of training.
    """

    def __init__(self, timeout: int = 1800) -> None:
        super().__init__()
        self.timeout = timeout
        self.timer: threading.Timer | None = None

    def fit_end(self, state: State, logger: Logger) -> None:
        """Starts the clock."""
        self._stop()
        self.timer = threading.Timer(self.timeout, _interrupt, [self.timeout])
        # A timer must not itself keep the process from ending.
        self.timer.daemon = True
        self.timer.start()

    def post_close(self) -> None:
        """Stops the clock: the run has ended."""
        self._stop()

    def _stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
