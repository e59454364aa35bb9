"""An end to a run whose loss has jumped and stays up, or never came down."""

import logging
from collections import deque
from typing import Any

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.time import TimeUnit
from llmfoundry.utils.exceptions import HighLossError, LossSpikeError
from llmfoundry.utils.warnings import experimental_class

__all__ = ["KillLossSpike"]

log = logging.getLogger(__name__)

WINDOW_SIZE = 100
WINDOW_SHARE = 0.05
LOSS_CAP = 10


@experimental_class("KillLossSpike")
class KillLossSpike(Callback):
    """Ends a run with an error, or says so, when its loss is beyond hope.

    The loss spikes when more than ``patience`` losses in a row are at least ``outlier_multiplier``
    times the mean of the window before them. It is high when at least half of the window is above
    ``loss_cap``, after twice the window's steps. Reading the loss waits for the device at each
    step.

    With ``log_only`` the metric ``loss_spike`` or ``high_loss`` becomes 1, and the window is logged
    as the table ``loss_window``, once a spike and once a run of high losses.

    Args:
        log_only: Goes on.
        patience: Outliers in a row that are no spike yet.
        outlier_multiplier: What makes a loss an outlier.
        window_size: Steps; the default grows to a twentieth of the run.
        loss_cap: What makes a loss high; the default falls to the largest loss of the first window.
    """

    def __init__(
        self,
        log_only: bool = True,
        patience: int = 4,
        outlier_multiplier: float = 2,
        window_size: int = WINDOW_SIZE,
        loss_cap: float = LOSS_CAP,
    ) -> None:
        super().__init__()
        for name, value, least in (("patience", patience, 0), ("window_size", window_size, 1)):
            if value < least:
                raise ValueError(f"kill_loss_spike: {name}={value} must be at least {least}.")
        self.log_only = log_only
        self.patience = patience
        self.outlier_multiplier = outlier_multiplier
        self.window_size = window_size
        self.loss_cap = loss_cap
        self.outlier_counter = 0
        self.loss_window: deque[float] = deque(maxlen=window_size)
        self.is_fitted = False
        self.is_high = False

    def batch_end(self, state: State, logger: Logger) -> None:
        """Holds the step's loss against those before it."""
        loss = state.total_loss_dict["loss/train/total"]
        if len(self.loss_window) == self.window_size and not self.is_fitted:
            self._fit_to_run(state)  # which may widen the window
        if len(self.loss_window) == self.window_size:
            self._check_spike(loss, logger)
            self._check_high(state.timestamp.batch.value, logger)
        self.loss_window.append(loss)

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run goes on with."""
        kept = ("window_size", "loss_cap", "outlier_counter", "is_fitted", "is_high")
        return {name: getattr(self, name) for name in kept} | {
            "loss_window": list(self.loss_window)
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on as the saved run would have."""
        for name, value in state.items():
            setattr(self, name, value)
        self.loss_window = deque(state["loss_window"], maxlen=self.window_size)

    def _fit_to_run(self, state: State) -> None:
        """Derives the settings that were left at their defaults from the run's length and loss."""
        share = round(WINDOW_SHARE * _total_steps(state))
        if self.window_size == WINDOW_SIZE and share > self.window_size:
            self.window_size = share
            self.loss_window = deque(self.loss_window, maxlen=share)
            return
        if self.loss_cap == LOSS_CAP and state.timestamp.batch.value <= self.window_size + 1:
            self.loss_cap = min(max(self.loss_window), LOSS_CAP)
        self.is_fitted = True

    def _check_spike(self, loss: float, logger: Logger) -> None:
        mean = sum(self.loss_window) / self.window_size
        if not loss >= self.outlier_multiplier * mean:
            self.outlier_counter = 0
            return
        self.outlier_counter += 1
        if self.outlier_counter == self.patience + 1:
            window = [*self.loss_window, loss]
            error = LossSpikeError(
                self.outlier_multiplier, round(mean, 4), self.outlier_counter, window
            )
            self._end("loss_spike", error, window, logger)

    def _check_high(self, step: int, logger: Logger) -> None:
        n_high = sum(loss > self.loss_cap for loss in self.loss_window)
        was_high = self.is_high
        self.is_high = step >= 2 * self.window_size and n_high >= self.window_size / 2
        if self.is_high and not was_high:
            window = list(self.loss_window)
            error = HighLossError(self.loss_cap, self.window_size, window)
            self._end("high_loss", error, window, logger)

    def _end(self, name: str, error: Exception, window: list[float], logger: Logger) -> None:
        if not self.log_only:
            raise error
        log.warning("%s", error)
        logger.log_metrics({name: 1})
        logger.log_table(["loss"], [[loss] for loss in window], "loss_window")


def _total_steps(state: State) -> float:
    """Returns how many steps the run is to take, as far as is known; 0 if nothing is."""
    duration, elapsed = state.max_duration, state.get_elapsed_duration()
    if duration is None or elapsed is None:
        return 0
    if duration.unit is TimeUnit.EPOCH:
        return 0 if state.dataloader_len is None else duration.value * state.dataloader_len.value
    return state.timestamp.batch.value / elapsed.value
