"""Starts the processes of a node with torch's elastic agent, watches them, and leaves none behind.

torch is imported only inside the functions: the launcher's help must not wait for it.
"""

import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from composer.cli.options import LaunchOptions

__all__ = ["launch"]

_CHILD = str(Path(__file__).with_name("_child.py"))
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_SECONDS = 30
_POLL_SECONDS = 0.1
_JOIN_SECONDS = 900
_REAP_SECONDS = 5
# Of a captured log, this much of the end is shown when its process fails.
_SHOWN_BYTES = 1 << 16
_HANDLED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ENDED_BY_US = (-signal.SIGTERM, -signal.SIGKILL)


def launch(options: LaunchOptions) -> int:
    """Runs the program in all processes of this node and returns the launcher's exit code.

    That is the code of the first process that failed (128 + n if signal n ended it), 128 + n if
    signal n ended the launcher, and 0 if all went well. Whatever happens, no process is left.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    _adopt_orphans()
    _end_on_signals()
    os.environ.update({"PYTHONUNBUFFERED": "1", "NODE_RANK": str(options.node_rank), **options.env})
    with tempfile.TemporaryDirectory(prefix="composer_logs_") as folder:
        stdout = options.stdout or os.path.join(folder, "rank{rank}.stdout.txt")
        stderr = options.stderr or os.path.join(folder, "rank{rank}.stderr.txt")
        config = _config(options, folder)
        _quiet(options.verbose)
        task = {
            "launcher": os.getpid(),
            "stdout": stdout,
            "stderr": stderr,
            "program": options.program,
            "arguments": options.arguments,
        }
        run = elastic_launch(config, sys.executable)
        try:
            run("-I", _CHILD, json.dumps(task).encode().hex())
        except ChildFailedError as error:
            _kill_leftovers()
            return _report(error.failures, options, stdout, stderr)
        except SignalException as error:
            print(f"composer: {error.sigval.name} received, all processes ended", file=sys.stderr)
            return 128 + int(error.sigval)
        finally:
            _kill_leftovers()
    return 0


def _end_on_signals() -> None:
    """Ends the ranks in peace at the first signal, and everything at once at the second.

    The agent's own handler would, at a second Ctrl-C, start the wait for the ranks anew.
    """
    from torch.distributed.elastic.multiprocessing import SignalException

    received: list[int] = []

    def handle(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            _kill_leftovers()
            os._exit(128 + number)
        name = signal.Signals(number)
        raise SignalException(f"composer received {name.name}", sigval=name)

    for number in _HANDLED_SIGNALS:
        signal.signal(number, handle)


def _config(options: LaunchOptions, folder: str) -> Any:
    """Translates the options into the elastic agent's."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    num_nodes = options.world_size // options.nproc
    address = options.master_addr or "127.0.0.1"
    if options.master_port is None:
        # The agent listens on a port that the system chooses: no other program can be faster.
        rendezvous: dict[str, Any] = {
            "rdzv_backend": "c10d",
            "rdzv_endpoint": f"{address}:0",
            "local_addr": address,
            "run_id": uuid.uuid4().hex,
        }
    else:
        rendezvous = {
            "rdzv_backend": "static",
            "rdzv_endpoint": f"{address}:{options.master_port}",
            "rdzv_configs": {"rank": options.node_rank, "timeout": _JOIN_SECONDS},
            "run_id": "composer",
        }
    return LaunchConfig(
        min_nodes=num_nodes,
        max_nodes=num_nodes,
        nproc_per_node=options.nproc,
        logs_specs=DefaultLogsSpecs(log_dir=folder),
        role="composer",
        max_restarts=0,
        monitor_interval=_POLL_SECONDS,
        shutdown_timeout=_GRACE_SECONDS,
        signals_to_handle="SIGQUIT",
        **rendezvous,
    )


def _quiet(verbose: bool) -> None:
    """Sets the level of the agent's loggers; each carries its own, set when torch imported it."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.INFO if verbose else logging.CRITICAL)


def _report(failures: dict[int, Any], options: LaunchOptions, stdout: str, stderr: str) -> int:
    """Prints how each process failed, in the order in which they did, and returns the exit code."""
    ranked = sorted(failures.items(), key=lambda item: item[1].timestamp)
    first_rank, first = ranked[0]
    for rank, failure in ranked:
        # Processes that the launcher itself ended say nothing about the cause.
        if failure.exitcode in _ENDED_BY_US and rank != first_rank:
            continue
        print(
            f"Global rank {rank} (PID {failure.pid}) exited with code {failure.exitcode}",
            file=sys.stderr,
        )
        if failure.local_rank == 0:
            continue  # its output is on the terminal already
        place = {
            "rank": rank,
            "local_rank": failure.local_rank,
            "world_size": options.world_size,
            "local_world_size": options.nproc,
            "node_rank": options.node_rank,
        }
        _show(rank, "STDOUT", stdout.format(**place))
        _show(rank, "STDERR", stderr.format(**place))
    print(f"composer: global rank {first_rank} failed first, all processes ended", file=sys.stderr)
    return first.exitcode if first.exitcode > 0 else 128 - first.exitcode


def _show(rank: int, title: str, path: str) -> None:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - _SHOWN_BYTES, 0))
            text = file.read().decode(errors="replace").rstrip()
    except FileNotFoundError:  # the process failed before it opened its log
        return
    if not text:
        return
    cut = f"[the first {size - _SHOWN_BYTES} bytes are not shown]\n" if size > _SHOWN_BYTES else ""
    print(
        f"----------Begin global rank {rank} {title}----------\n{cut}{text}\n"
        f"----------End global rank {rank} {title}----------",
        file=sys.stderr,
    )


def _adopt_orphans() -> None:
    """Makes orphans children of the launcher, so that it can find them (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _kill_leftovers() -> None:
    """Kills every process below this one: ranks that would not end, workers of dead ranks."""
    import psutil

    # A second Ctrl-C must not stop the one thing that leaves the machine clean.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _HANDLED_SIGNALS}
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
