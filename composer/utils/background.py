"""Threads that do what nobody should wait for, such as sending things away."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Thread
from typing import Any, TypeVar

from composer.utils import dist

__all__ = ["BackgroundThreads", "is_done_on_rank_zero", "start_in_daemon"]

TResult = TypeVar("TResult")

_SECONDS_OF_A_ROUND = 1.0


class BackgroundThreads:
    """Starts calls in threads in the order given; at the interpreter's exit, in the caller's own.

    Python takes no more work for threads once it exits, but only then are runs closed that nobody
    closed, and what they still have to send matters.

    Args:
        num_threads: How many calls run at a time.
        name: The threads' name.
    """

    def __init__(self, num_threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(num_threads, name)
        self._is_closed = False

    def submit(self, call: Callable[..., TResult], *args: Any) -> Future[TResult]:
        """Starts a call; its result or error is in the future."""
        try:
            return self._pool.submit(call, *args)
        except RuntimeError:
            if self._is_closed:
                raise
        future: Future[TResult] = Future()
        try:
            future.set_result(call(*args))
        except Exception as error:  # as a thread would: whoever asks for the result gets it
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Waits for all calls and ends the threads."""
        self._is_closed = True
        self._pool.shutdown()


def start_in_daemon(name: str, call: Callable[..., TResult], *args: Any) -> Future[TResult]:
    """Starts a call in a thread of its own, which does not keep the process from its end.

    Args:
        name: The thread's name.
        call: What it calls; its result or error is in the future.
        args: The call's arguments.
    """
    future: Future[TResult] = Future()

    def work() -> None:
        try:
            result = call(*args)
        except BaseException as error:  # as a pool's thread would
            future.set_exception(error)
        else:
            future.set_result(result)

    Thread(target=work, name=name, daemon=True).start()
    return future


def is_done_on_rank_zero(future: Future[Any] | None, limit: float | None = None) -> bool:
    """Waits for what rank 0 does in a thread, and tells every rank whether it came to its end.

    All ranks call it. They meet every second, so that no collective runs into its timeout while
    rank 0 is busy.

    Args:
        future: What rank 0 waits for; None is done. Other ranks' own does not matter.
        limit: For how many seconds rank 0 waits; for ever by default.
    """
    end = float("inf") if limit is None else time.monotonic() + limit

    def look() -> bool | None:
        if future is not None:
            wait([future], timeout=max(0.0, min(_SECONDS_OF_A_ROUND, end - time.monotonic())))
        if future is None or future.done():
            return True
        return False if time.monotonic() >= end else None

    while (answer := dist.from_rank_zero(look)) is None:
        pass
    return answer
