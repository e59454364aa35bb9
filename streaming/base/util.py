"""Small public helpers: number texts, list texts, retries, and names kept for old scripts."""

import functools
import os
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar, overload

from streaming.base.index import merge_index

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_BYTE_UNITS = {unit: 1024**power for power, unit in enumerate("b kb mb gb tb pb eb zb yb".split())}
_COUNT_UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}

__all__ = [
    "bytes_to_int",
    "clean_stale_shared_memory",
    "get_import_exception_message",
    "get_list_arg",
    "merge_index",
    "number_abbrev_to_int",
    "retry",
    "wait_for_file_to_exist",
]


def get_list_arg(text: str) -> list[str]:
    """Splits a comma-separated command-line value; the empty text gives no items."""
    return text.split(",") if text else []


def _scaled(text: str | int | float, units: dict[str, int], what: str) -> int:
    """Reads a number with an optional unit suffix, longest suffix first."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return int(text)
    compact = str(text).strip().lower().replace(" ", "")
    for unit in sorted(units, key=len, reverse=True):
        if compact.endswith(unit):
            number, scale = compact[: -len(unit)], units[unit]
            break
    else:
        number, scale = compact, 1
    try:
        return int(number) * scale
    except ValueError:
        pass
    try:
        return int(float(number) * scale)
    except (ValueError, OverflowError):
        raise ValueError(
            f"Unsupported value/suffix {text!r}: expected {what}, a number with or without one of "
            f"{', '.join(units)}."
        ) from None


def bytes_to_int(bytes_str: str | int | float) -> int:
    """Reads a size in bytes such as ``"64mb"`` or ``1024`` (units are powers of 1,024)."""
    return _scaled(bytes_str, _BYTE_UNITS, "a size in bytes")


def number_abbrev_to_int(abbrev_str: str | int | float) -> int:
    """Reads a count such as ``"1.5m"`` or ``100`` (units are powers of 1,000)."""
    return _scaled(abbrev_str, _COUNT_UNITS, "a count")


def wait_for_file_to_exist(
    filename: str, poll_interval: float, timeout: float, err_msg: str
) -> None:
    """Waits until another process has made a file.

    Raises:
        RuntimeError: if it is not there after ``timeout`` seconds.
    """
    deadline = time.monotonic() + timeout
    while not os.path.exists(filename):
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"{err_msg} Waited {timeout:.1f} seconds for {filename!r} to appear."
            )
        time.sleep(poll_interval)


def clean_stale_shared_memory() -> None:
    """Does nothing, and is kept so that old start-up scripts run.

    This package names no shared memory and no lock, so that nothing can be left behind by a run
    that was killed, and there is nothing to clean.
    """


def get_import_exception_message(package_name: str, extra_deps: str) -> str:
    """Says which extra to install when an optional package is missing."""
    return (
        f"Streaming was installed without {package_name} support. To use it, run `pip install "
        f"'llmfoundry[{extra_deps}]'`."
    )


@overload
def retry(exc_class: F) -> F: ...
@overload
def retry(
    exc_class: type[Exception] | tuple[type[Exception], ...] = ...,
    clean_up_fn: Callable[[], None] | None = ...,
    num_attempts: int = ...,
    initial_backoff: float = ...,
    max_jitter: float = ...,
) -> Callable[[F], F]: ...
def retry(
    exc_class: Any = Exception,
    clean_up_fn: Callable[[], None] | None = None,
    num_attempts: int = 3,
    initial_backoff: float = 1.0,
    max_jitter: float = 0.5,
) -> Any:
    """Makes a function try again, waiting twice as long each time; use it bare or called.

    Args:
        exc_class: The exceptions that are worth another try.
        clean_up_fn: Called after every failure.
        num_attempts: How often the function runs at most, the first time included.
        initial_backoff: Seconds before the second attempt.
        max_jitter: Seconds of random extra wait, so that many clients do not return together.
    """
    if callable(exc_class) and not isinstance(exc_class, type):
        return retry()(exc_class)
    caught: type[Exception] | tuple[type[Exception], ...] = exc_class
    if num_attempts < 1:
        raise ValueError("num_attempts must be at-least 1")

    def wrap(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def attempt(*args: Any, **kwargs: Any) -> Any:
            for trial in range(num_attempts):
                try:
                    return fn(*args, **kwargs)
                except caught:
                    if clean_up_fn is not None:
                        clean_up_fn()
                    if trial + 1 == num_attempts:
                        raise
                    time.sleep(initial_backoff * 2**trial + random.random() * max_jitter)
            return None

        return attempt

    return wrap


class _Final(Exception):
    """Holds an error that another try will not change."""


def call_store(call: Callable[[], T], num_attempts: int, initial_backoff: float = 0.2) -> T:
    """Calls again, after a growing pause, while there is trouble with a store that may pass.

    What is missing or forbidden is raised at once.

    Args:
        call: Fetches or stores something.
        num_attempts: How often to try in all.
        initial_backoff: Seconds before the second attempt.
    """

    @retry(OSError, num_attempts=num_attempts, initial_backoff=initial_backoff)
    def attempt() -> T:
        try:
            return call()
        except (FileNotFoundError, PermissionError) as error:
            raise _Final(error) from error

    try:
        return attempt()
    except _Final as final:
        raise final.args[0] from final.args[0].__cause__
