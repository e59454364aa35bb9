"""What this machine and installation are, for checkpoints' metadata and for reports of faults."""

import functools
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TextIO

import torch

from composer._version import __version__
from composer.utils import dist

__all__ = [
    "configure_excepthook",
    "disable_env_report",
    "enable_env_report",
    "get_composer_env_dict",
    "print_env",
]

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

_report_wanted = True
# Those that this file installed, so that none is put before another.
_hooks: list[_Hook] = []


def get_composer_version() -> str:
    """Returns this package's version."""
    return str(__version__)


@functools.lru_cache
def get_composer_commit_hash() -> str | None:
    """Returns the commit that the source stands at, or None if it is not a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


@functools.lru_cache
def get_cpu_model() -> str:
    """Returns the processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine() or "N/A"


def get_cpu_count() -> int:
    """Returns the number of logical processors."""
    return os.cpu_count() or 1


def get_node_world_size() -> int:
    """Returns the number of nodes in the run."""
    return max(dist.get_world_size() // dist.get_local_world_size(), 1)


def get_gpu_model() -> str:
    """Returns the name of the first GPU, ``N/A`` without one."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "N/A"


def get_local_world_size() -> int:
    """Returns the number of GPUs that the run uses on a node, 0 without CUDA."""
    return dist.get_local_world_size() if torch.cuda.is_available() else 0


def get_cuda_device_count() -> int:
    """Returns the number of GPUs that this process can see."""
    return torch.cuda.device_count()


def get_composer_env_dict() -> dict[str, str | int | None]:
    """Returns the facts that each checkpoint carries."""
    return {
        "composer_version": get_composer_version(),
        "composer_commit_hash": get_composer_commit_hash(),
        "cpu_model": get_cpu_model(),
        "cpu_count": get_cpu_count(),
        "num_nodes": get_node_world_size(),
        "gpu_model": get_gpu_model(),
        "num_gpus_per_node": get_local_world_size(),
        "num_gpus": dist.get_world_size(),
        "cuda_device_count": get_cuda_device_count(),
    }


def get_torch_env() -> str:
    """Returns torch's own report of the machine."""
    from torch.utils.collect_env import (
        get_pretty_env_info,
    )  # runs a dozen programs; imported when asked

    return str(get_pretty_env_info())


def get_composer_env() -> str:
    """Returns this package's part of the report."""
    return "\n".join(f"{key}: {value}" for key, value in get_composer_env_dict().items())


def print_env(file: TextIO | None = None) -> None:
    """Writes the report to ``file``, standard output by default."""
    started = time.time()
    report = (
        "---------------------------------\n"
        "System Environment Report\n"
        f"Created: {time.strftime('%Y-%m-%d %H:%M:%S %Z')}\n"
        "---------------------------------\n\n"
        f"PyTorch information\n-------------------\n{get_torch_env()}\n\n"
        f"Composer information\n--------------------\n{get_composer_env()}\n"
        "--------------------------------\n"
    )
    print(f"{report}Report took {time.time() - started:.1f} s.", file=file or sys.stdout)


def enable_env_report() -> None:
    """Lets the hook of :func:`configure_excepthook` print the report; that is the default."""
    global _report_wanted
    _report_wanted = True


def disable_env_report() -> None:
    """Keeps the hook of :func:`configure_excepthook` from printing the report."""
    global _report_wanted
    _report_wanted = False


def _with_report(original: _Hook) -> _Hook:
    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _report_wanted and not issubclass(kind, KeyboardInterrupt):
            try:
                print_env(sys.stderr)
            except Exception:  # the report must never hide the error that it is about
                traceback.print_exc()
        original(kind, error, trace)

    _hooks.append(hook)
    return hook


def configure_excepthook() -> None:
    """Prints the report to stderr before the traceback of any uncaught error, from now on."""
    if sys.excepthook not in _hooks:
        sys.excepthook = _with_report(sys.excepthook)


def main() -> None:
    """Prints the report (``composer_collect_env``)."""
    print("Collecting system information...")
    print_env()


if __name__ == "__main__":
    main()
