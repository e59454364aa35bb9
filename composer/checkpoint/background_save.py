"""A checkpoint written in a thread while training goes on: one at a time, and never forgotten."""

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import torch

from composer.checkpoint.staging import Staging
from composer.utils import dist
from composer.utils.background import BackgroundThreads

__all__ = ["BackgroundSave"]

log = logging.getLogger(__name__)


class BackgroundSave:
    """Writes what was copied. All ranks use it alike, so that they agree on what went wrong."""

    def __init__(self) -> None:
        self._staging = Staging()
        self._reserving: Future[None] | None = None
        self._threads = BackgroundThreads(1, "checkpoint")
        self._pending: Future[Any] | None = None
        self._group: Any = None

    @property
    def staging(self) -> Staging:
        """The memory for the copies, once nothing else uses it."""
        if self._reserving is not None:
            self._reserving.result()
            self._reserving = None
        return self._staging

    @property
    def group(self) -> Any:
        """The ranks, in a group of their own: the thread must not meet training's collectives."""
        if self._group is None and dist.get_world_size() > 1:
            self._group = torch.distributed.new_group(backend="gloo")
        return self._group

    @property
    def is_pending(self) -> bool:
        """Whether something was started whose end has not been looked at."""
        return self._pending is not None

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._pending is not None and self._pending.done()

    @property
    def has_failed(self) -> bool:
        """Whether it has ended badly."""
        return self.is_done and self._pending is not None and self._pending.exception() is not None

    def reserve(self, tensors: Iterable[torch.Tensor]) -> None:
        """Takes, in the thread, the memory that copies of these tensors will need.

        What was reserved before is used again.
        """
        self._reserving = self._threads.submit(self._staging.reserve, list(tensors))

    def start(self, write: Callable[[], Any]) -> None:
        """Starts to write what has been copied."""
        assert self._pending is None, "wait for the last one first"

        def run() -> Any:
            try:
                return write()
            finally:
                self._staging.release()

        self._pending = self._threads.submit(run)

    def settle(self) -> Exception | None:
        """Waits for what is pending, on this rank, and returns what went wrong with it."""
        pending, self._pending = self._pending, None
        error = None if pending is None else pending.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        return error

    def close(self) -> None:
        """Waits for the thread, ends it and gives the memory back."""
        self._threads.close()
        self._staging.forget()
