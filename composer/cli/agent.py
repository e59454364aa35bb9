"""Starts the processes of a node with torch's elastic agent, watches them, and leaves none behind.

torch is imported only inside the functions: the launcher's help must not wait for it.
"""

import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from composer.cli.guard import HANDLED_SIGNALS, adopt_orphans, kill_below
from composer.cli.meeting import Meeting
from composer.cli.options import LaunchOptions

__all__ = ["launch"]

_CHILD = str(Path(__file__).with_name("_child.py"))
_GRACE_SECONDS = 30
_POLL_SECONDS = 0.1
# A terminal, or who signals a whole group, reaches the launcher twice: see ``guarded``.
_SAME_SIGNAL_SECONDS = 0.3
# Of a captured log, this much of the end is shown when its process fails.
_SHOWN_BYTES = 1 << 16
_ENDED_BY_US = (-signal.SIGTERM, -signal.SIGKILL)


def launch(options: LaunchOptions) -> int:
    """Runs the program in all processes of this node and returns the launcher's exit code.

    That is the code of the first process that failed in the last try (128 + n if signal n ended
    it), 128 + n if signal n ended the launcher, 1 if the nodes did not find each other or lost each
    other, and 0 if all went well. Whatever happens, no process is left.
    """
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.rendezvous import RendezvousError

    adopt_orphans()
    _end_on_signals()
    os.environ.update({"PYTHONUNBUFFERED": "1", **options.env})
    with tempfile.TemporaryDirectory(prefix="composer_logs_") as folder:
        _quiet(options.verbose)
        reporter = _Reporter(options, folder)
        meeting: Meeting | None = None
        try:
            meeting = Meeting(options, before=_prepare_meeting)
            result = _make_agent(options, meeting, folder, reporter.report).run()
            code = reporter.exit_code if result is not None and result.is_failed() else 0
        except SignalException as error:
            print(f"composer: {error.sigval.name} received, all processes ended", file=sys.stderr)
            code = 128 + int(error.sigval)
        except (RendezvousError, DistError) as error:
            print(f"composer: {_without_nodes(options, meeting, error)}", file=sys.stderr)
            code = 1
        else:
            kill_below()
            with contextlib.suppress(RendezvousError):
                meeting.shutdown()  # so that no node waits for one that has ended
        finally:
            kill_below()
    return code


def _prepare_meeting(meetings_before: int) -> None:
    """Clears away what the processes of an earlier try have left."""
    if meetings_before:
        kill_below()
        print("composer: starting all processes again", file=sys.stderr)


def _without_nodes(options: LaunchOptions, meeting: Meeting | None, error: Exception) -> str:
    """Says in which phase the nodes did not find each other, or no longer do."""
    from torch.distributed.elastic.rendezvous import RendezvousClosedError

    place = f"{options.master_addr or '127.0.0.1'}:{options.master_port}"
    what = str(error) or type(error).__name__
    if isinstance(error, RendezvousClosedError):
        return f"the run that met at {place} has ended on other nodes, so this one ends too"
    if meeting is not None and meeting.is_met:
        return f"lost the meeting point {place} while the processes ran, all were ended: {what}"
    count = options.min_nodes
    return (
        f"waiting for {count} nodes at {place} failed after {options.join_timeout} s "
        f"(--join_timeout): {what}. Start all {count} nodes, and see that each reaches {place}."
    )


def _make_agent(
    options: LaunchOptions,
    meeting: Meeting,
    folder: str,
    report: Callable[[Mapping[int, Any]], None],
) -> Any:
    """Builds torch's agent, and has it tell of every failure when it happens."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

    base: Any = LocalElasticAgent  # its methods' decorators have no annotations

    class Agent(base):
        def _monitor_workers(self, worker_group: Any) -> Any:
            result = super()._monitor_workers(worker_group)
            if result.failures:
                report(result.failures)
            return result

    task = {
        "launcher": os.getpid(),
        "folder": folder,
        "stdout": options.stdout or os.path.join(folder, "rank{rank}.stdout.txt"),
        "stderr": options.stderr or os.path.join(folder, "rank{rank}.stderr.txt"),
        "program": options.program,
        "arguments": options.arguments,
    }
    # Only for what it finds out about the machine's processors and GPUs.
    machine = LaunchConfig(options.min_nodes, options.max_nodes, options.nproc)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
    spec = WorkerSpec(
        role="composer",
        local_world_size=options.nproc,
        rdzv_handler=cast("Any", meeting),
        entrypoint=sys.executable,
        args=("-I", _CHILD, json.dumps(task).encode().hex()),
        max_restarts=options.max_restarts,
        monitor_interval=_POLL_SECONDS,
        master_addr=(options.master_addr or "127.0.0.1") if meeting.is_static else None,
        master_port=options.master_port if meeting.is_static else None,
        numa_options=machine.numa_options,
    )
    return Agent(spec, DefaultLogsSpecs(log_dir=folder), shutdown_timeout=_GRACE_SECONDS)


def _end_on_signals() -> None:
    """Ends the ranks in peace at the first signal, and everything at once at the second.

    The agent's own handler would, at a second Ctrl-C, start the wait for the ranks anew.
    """
    from torch.distributed.elastic.multiprocessing import SignalException

    received: list[float] = []

    def handle(number: int, _frame: object) -> None:
        received.append(time.monotonic())
        if received[-1] - received[0] < _SAME_SIGNAL_SECONDS and len(received) > 1:
            return
        if len(received) > 1:
            kill_below()
            os._exit(128 + number)
        name = signal.Signals(number)
        raise SignalException(f"composer received {name.name}", sigval=name)

    for number in HANDLED_SIGNALS:
        signal.signal(number, handle)


def _quiet(verbose: bool) -> None:
    """Sets the level of the agent's loggers; each carries its own, set when torch imported it."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, stream=sys.stderr)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("torch.distributed.elastic", "torch.distributed.launcher")):
            logging.getLogger(name).setLevel(logging.INFO if verbose else logging.CRITICAL)


class _Reporter:
    """Prints what went wrong, and keeps the exit code."""

    def __init__(self, options: LaunchOptions, folder: str) -> None:
        self._max_restarts = options.max_restarts
        self._folder = folder
        self._failures = 0
        self.exit_code = 0

    def report(self, failures: Mapping[int, Any]) -> None:
        """Prints how each process failed, in the order in which they did."""
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
            if failure.local_rank != 0:  # that one's output is on the terminal already
                _show(rank, "STDOUT", os.path.join(self._folder, f"{rank}.stdout"))
                _show(rank, "STDERR", os.path.join(self._folder, f"{rank}.stderr"))
        self._failures += 1
        after = "all processes ended"
        if self._failures <= self._max_restarts:
            after = f"restart {self._failures} of {self._max_restarts}"
        print(f"composer: global rank {first_rank} failed first, {after}", file=sys.stderr)
        self.exit_code = first.exitcode if first.exitcode > 0 else 128 - first.exitcode


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
