"""Two processes that watch each other, so that killing the launcher leaves nothing behind.

The one that the user started waits; the one below it is the launcher. If the launcher is killed,
what it has left falls to the first, which ends it. If the first is killed, the launcher is told.
"""

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

__all__ = ["HANDLED_SIGNALS", "adopt_orphans", "guarded", "kill_below"]

HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_REAP_SECONDS = 5


def guarded(launch: Callable[[], int]) -> int:
    """Calls ``launch`` in a process of its own and returns its code; then nothing is left of it.

    Only on Linux, whose kernel gives orphans to who asks for them; elsewhere this process becomes
    the launcher.
    """
    if not sys.platform.startswith("linux"):
        _exit_with(launch)
    adopt_orphans()
    sys.stdout.flush()
    sys.stderr.flush()
    above = os.getpid()
    launcher = os.fork()
    if launcher == 0:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != above:  # it went before the request was made
            os._exit(128 + signal.SIGTERM)
        _exit_with(launch)

    def hand_on(number: int, _frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(launcher, number)

    before = {number: signal.signal(number, hand_on) for number in HANDLED_SIGNALS}
    code = os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1])
    if code < 0:  # after any other end it has cleared away itself
        print(f"composer: signal {-code} ended the launcher, all processes ended", file=sys.stderr)
        kill_below()
    for number, handler in before.items():
        signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _exit_with(launch: Callable[[], int]) -> NoReturn:
    """Ends this process with the launcher's code, and at once.

    A thread may wait for a store that has gone, and the interpreter cannot end in peace around it.
    """
    code = 1
    try:
        code = launch()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def adopt_orphans() -> None:
    """Makes orphans children of this process, so that it can find them (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_below() -> None:
    """Kills every process below this one: ranks that would not end, workers of dead ranks."""
    import psutil

    # A second Ctrl-C must not stop the one thing that leaves the machine clean.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in HANDLED_SIGNALS}
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        # Reaped here, because nobody else waits for adopted processes.
        _, alive = psutil.wait_procs(children, timeout=_REAP_SECONDS)
        if alive:  # stuck in the kernel; a kill is pending, and waiting for ever helps nobody
            break
    for number, handler in before.items():
        signal.signal(number, handler)
