"""A run that is killed after its checkpoint, and goes on from it."""

import copy
import time

import pytest

from composer.core.callback import Callback
from tests.composer.plugins import HandRun


class Killed(Exception):
    pass


class SavesThenDies(Callback):
    def __init__(self, saves_at, dies_at):
        self.saves_at, self.dies_at, self.saved = saves_at, dies_at, None

    def batch_end(self, state, logger):
        logger.log_metrics({"lr": 0.1})

    def batch_checkpoint(self, state, logger):
        if state.timestamp.batch == self.saves_at:
            self.saved = copy.deepcopy(state.state_dict())

    def batch_start(self, state, logger):
        if state.timestamp.batch == self.dies_at:
            raise Killed


def killed_and_resumed(make_logger, run_name="run", next_name=None):
    """Trains 5 batches, of which the checkpoint knows 3, then from 3 to 6; returns both loggers.

    ``loss/train/total`` has the step before a batch, ``lr`` the one after it.
    """
    saver = SavesThenDies(saves_at=3, dies_at=5)
    first = HandRun(saver, make_logger(), max_duration="6ba", run_name=run_name)
    first.logger.log_hyperparameters({"seed": 17})
    with pytest.raises(Killed):
        first.loaded().fit()
    first.close()
    time.sleep(0.01)
    second = HandRun(
        SavesThenDies(99, 99), make_logger(), max_duration="6ba", run_name=next_name or run_name
    )
    second.logger.log_hyperparameters({"seed": 17, "num_nodes": 2})
    second.loaded(saver.saved).fit().close()
    return first.logger.destinations[0], second.logger.destinations[0]
