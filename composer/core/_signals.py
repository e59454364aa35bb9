"""Leaving in order on SIGTERM and SIGINT, so that callbacks are closed and files are whole.

A process that is killed by a signal runs no exit handlers. While an Engine is open these signals
raise SystemExit instead, from which everything is closed. Nothing happens at import; a handler that
somebody else has installed is left alone; and when the last Engine closes, Python's own come back.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

_DEFAULTS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
_num_open = 0


def exit_on_signal(signal_number: int, frame: FrameType | None) -> None:
    """Leaves the process with the exit code that says which signal ended it."""
    del frame
    sys.exit(128 + signal_number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def install_handlers(leave_interrupt: bool) -> None:
    """Makes the signals leave in order, where Python's own handlers are in place.

    Args:
        leave_interrupt: Whether Ctrl-C stays a KeyboardInterrupt, as a notebook needs it.
    """
    global _num_open
    _num_open += 1
    if not _in_main_thread():  # Python lets only the main thread set handlers
        return
    for number, default in _DEFAULTS.items():
        if leave_interrupt and number == signal.SIGINT:
            continue
        if signal.getsignal(number) is default:
            signal.signal(number, exit_on_signal)


def restore_handlers() -> None:
    """Puts Python's own handlers back when the last Engine has closed."""
    global _num_open
    _num_open -= 1
    if _num_open > 0 or not _in_main_thread():
        return
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is exit_on_signal:
            signal.signal(number, default)
