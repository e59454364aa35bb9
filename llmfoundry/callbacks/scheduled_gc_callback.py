"""Garbage collection at chosen steps, so that no rank makes the others wait at a random one."""

import gc

import torch

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State

__all__ = ["ScheduledGarbageCollector"]


def gc_cuda() -> None:
    """Collects every generation and gives cached GPU memory back."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class ScheduledGarbageCollector(Callback):
    """Switches Python's own collection off during training and collects at intervals.

    Args:
        batch_interval: Batches between full collections.
        gen_1_batch_interval: Batches between collections of the two youngest generations; None does
            none.
        eval_keep_disabled: Leaves the collector off during evaluation too.
    """

    def __init__(
        self,
        batch_interval: int,
        gen_1_batch_interval: int | None = None,
        eval_keep_disabled: bool = False,
    ) -> None:
        super().__init__()
        for name, value in (
            ("batch_interval", batch_interval),
            ("gen_1_batch_interval", gen_1_batch_interval),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least one batch, got {value}.")
        self.batch_interval = batch_interval
        self.gen_1_batch_interval = gen_1_batch_interval
        self.eval_keep_disabled = eval_keep_disabled
        self.gc_init_state = gc.isenabled()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Switches the collector off, after a first full collection."""
        self.gc_init_state = gc.isenabled()
        gc.disable()
        gc_cuda()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Collects and puts the collector back as it was."""
        gc_cuda()
        self._restore()

    def close(self, state: State, logger: Logger) -> None:
        """Puts the collector back as it was, also after an error."""
        self._restore()

    def before_dataloader(self, state: State, logger: Logger) -> None:
        """Collects if it is time."""
        batch = state.timestamp.batch.value
        if self.gen_1_batch_interval is not None and batch % self.gen_1_batch_interval == 0:
            gc.collect(1)
        if batch % self.batch_interval == 0:
            gc_cuda()

    def eval_start(self, state: State, logger: Logger) -> None:
        """Collects, and leaves the evaluation to the collector."""
        gc_cuda()
        if not self.eval_keep_disabled:
            gc.enable()

    def eval_end(self, state: State, logger: Logger) -> None:
        """Switches the collector off again."""
        if not self.eval_keep_disabled:
            gc.disable()
        gc_cuda()

    def _restore(self) -> None:
        if self.gc_init_state:
            gc.enable()
