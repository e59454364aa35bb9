"""Threads that do what nobody should wait for, such as sending things away."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["BackgroundThreads"]

TResult = TypeVar("TResult")


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
