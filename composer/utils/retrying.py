"""Trying again after errors that may pass."""

from __future__ import annotations

import functools
import inspect
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

TFunction = TypeVar("TFunction", bound=Callable[..., Any])

# Its own generator: waiting for a flaky network must not move the generator that training seeds.
_jitter = random.Random()


@overload
def retry(exc_class: TFunction) -> TFunction: ...


@overload
def retry(
    exc_class: type[BaseException] | Sequence[type[BaseException]] = ...,
    num_attempts: int = ...,
    initial_backoff: float = ...,
    max_jitter: float = ...,
) -> Callable[[TFunction], TFunction]: ...


def retry(
    exc_class: Any = Exception,
    num_attempts: int = 3,
    initial_backoff: float = 1.0,
    max_jitter: float = 0.5,
) -> Any:
    """Calls the decorated function again, after a growing pause, while it raises ``exc_class``.

    Usable bare. A function with a ``retry_index`` parameter is told which attempt it is. The last
    error is raised unchanged.

    Args:
        exc_class: The error class, or classes, after which to try again.
        num_attempts: How often to try in all; at least 1.
        initial_backoff: Seconds before the second attempt; doubled for each later one.
        max_jitter: Up to how many random seconds to add to each pause.

    Raises:
        ValueError: If ``num_attempts`` is below 1.
    """
    if num_attempts < 1:
        raise ValueError(f"num_attempts must be at least 1, not {num_attempts}")
    if inspect.isfunction(exc_class):
        return retry()(exc_class)
    exceptions = tuple(exc_class) if isinstance(exc_class, Sequence) else exc_class

    def wrap(func: Callable[..., Any]) -> Callable[..., Any]:
        takes_index = "retry_index" in inspect.signature(func).parameters

        @functools.wraps(func)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            for index in range(num_attempts):
                if takes_index:
                    kwargs["retry_index"] = index
                try:
                    return func(*args, **kwargs)
                except exceptions:
                    if index + 1 == num_attempts:
                        raise
                    time.sleep(initial_backoff * 2**index + _jitter.random() * max_jitter)
            raise AssertionError("unreachable: the last attempt returns or raises")

        return wrapped

    return wrap
