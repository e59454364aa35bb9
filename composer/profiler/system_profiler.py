"""Counters of the machine: CPU, memory, disks and network."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psutil
import torch

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.profiler._trace_files import profiler_of
from composer.utils.gpu_memory import get_cuda_memory_report

_BYTES_PER_KB = 1e3
_BYTES_PER_GB = 1e9

Reading = tuple[str, dict[str, float]]


class SystemProfiler(Callback):
    """Records counters of the machine on a thread of its own; `Profiler` makes it.

    | counter | values |
    | --- | --- |
    | ``cpu`` | ``cpu_percent``, over all cores, since the last reading |
    | ``memory/cuda/<name>`` | as ``MemoryMonitor`` names and counts them |
    | ``memory/swap``, ``memory/virtual`` | gigabytes (1e9 bytes) and per cent |
    | ``disk/<disk>/<field>`` | counts, bytes and milliseconds since the machine started |
    | ``network/<nic>/kb_sent``, ``.../kb_recv`` | kilobytes (1e3 bytes) since then |

    Args:
        profile_cpu: Whether to record the load of the CPU.
        profile_memory: Whether to record the memory of the machine and of CUDA.
        profile_disk: Whether to record what disks do.
        profile_net: Whether to record what the network does.
        stats_thread_interval_seconds: How often they are read.
    """

    def __init__(
        self,
        profile_cpu: bool = True,
        profile_memory: bool = False,
        profile_disk: bool = False,
        profile_net: bool = False,
        stats_thread_interval_seconds: float = 0.5,
    ) -> None:
        if stats_thread_interval_seconds <= 0:
            raise ValueError(
                f"stats_thread_interval_seconds={stats_thread_interval_seconds} must be above 0."
            )
        self.profile_cpu = profile_cpu
        self.profile_disk = profile_disk
        self.profile_memory = profile_memory
        self.profile_net = profile_net
        self.stats_thread_interval_seconds = stats_thread_interval_seconds
        self.finished_event = threading.Event()
        self._thread: threading.Thread | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Starts reading.

        Raises:
            RuntimeError: If the run has no profiler.
        """
        profiler = profiler_of(state, self)
        self.finished_event.clear()
        self._thread = threading.Thread(target=self._read_on, args=(profiler,), daemon=True)
        self._thread.start()

    def close(self, state: State, logger: Logger) -> None:
        """Stops reading."""
        self.finished_event.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _read_on(self, profiler: Any) -> None:
        psutil.cpu_percent()  # each call measures since the one before
        while not self.finished_event.wait(self.stats_thread_interval_seconds):
            for name, values in self._readings():
                profiler.marker(name, categories=[name.split("/")[0]]).counter(values)

    def _readings(self) -> Iterator[Reading]:
        if self.profile_cpu:
            yield from _cpu()
        if self.profile_memory:
            yield from _memory()
        if self.profile_disk:
            yield from _disks()
        if self.profile_net:
            yield from _network()


def _cpu() -> Iterator[Reading]:
    yield "cpu", {"cpu_percent": psutil.cpu_percent()}


def _memory() -> Iterator[Reading]:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for name, value in get_cuda_memory_report().items():
            yield f"memory/cuda/{name}", {name: value}
    swap, virtual = psutil.swap_memory(), psutil.virtual_memory()
    yield "memory/swap", _in_gigabytes(swap, used="used_gb", free="free_gb")
    yield "memory/virtual", _in_gigabytes(virtual, used="used_gb", available="available_gb")


def _in_gigabytes(memory: Any, **names: str) -> dict[str, float]:
    values = {name: getattr(memory, field) / _BYTES_PER_GB for field, name in names.items()}
    return {**values, "used_percent": memory.percent}


def _disks() -> Iterator[Reading]:
    for disk, counters in (psutil.disk_io_counters(perdisk=True) or {}).items():
        for field, value in counters._asdict().items():
            yield f"disk/{disk}/{field}", {field: value}


def _network() -> Iterator[Reading]:
    for nic, counters in psutil.net_io_counters(pernic=True).items():
        yield f"network/{nic}/kb_sent", {"kb_sent": counters.bytes_sent / _BYTES_PER_KB}
        yield f"network/{nic}/kb_recv", {"kb_recv": counters.bytes_recv / _BYTES_PER_KB}
