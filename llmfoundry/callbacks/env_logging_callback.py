"""What a run ran on: code, packages, machine, devices and ranks."""

import importlib.metadata
import logging
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.cuda import nccl

from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.utils import dist

__all__ = ["EnvironmentLoggingCallback"]

log = logging.getLogger(__name__)

WORKSPACE = "/workspace"
PACKAGES = ("llmfoundry", "torch", "flash_attn", "transformers", "datasets", "peft")
GIB = 2**30


class EnvironmentLoggingCallback(Callback):
    """Logs, once, what the run runs on, as the hyperparameter ``environment_data``.

    Args:
        workspace_dir: A checkout, or a folder of checkouts, whose branches and commits are logged;
            that the default does not exist is no error.
        log_git: Logs ``git_info``.
        log_nvidia: Logs ``nvidia``: the versions of CUDA, cuDNN and NCCL that torch has.
        log_docker: Logs ``docker``: whether this is a container, and the system in it.
        log_packages: Logs ``package_versions``.
        log_system: Logs ``system_info``: system, Python, cores and memory.
        log_gpu: Logs ``gpu_info``: the names and memory of this process's devices.
        log_distributed: Logs ``distributed_info``: ranks and nodes.
        packages_to_log: Names of distributions, instead of the default's.

    Raises:
        FileNotFoundError: ``workspace_dir`` was given, and is not there.
    """

    def __init__(
        self,
        workspace_dir: str = WORKSPACE,
        log_git: bool = True,
        log_nvidia: bool = True,
        log_docker: bool = True,
        log_packages: bool = True,
        log_system: bool = False,
        log_gpu: bool = False,
        log_distributed: bool = False,
        packages_to_log: list[str] | None = None,
    ) -> None:
        super().__init__()
        if log_git and workspace_dir != WORKSPACE and not Path(workspace_dir).is_dir():
            raise FileNotFoundError(
                f"workspace_dir={workspace_dir!r} is no folder: give a checkout or a folder of "
                "checkouts, or set log_git: false."
            )
        self.workspace_dir = Path(workspace_dir)
        self.packages_to_log = list(PACKAGES if packages_to_log is None else packages_to_log)
        self.parts = {
            "git_info": (log_git, self._git_info),
            "package_versions": (log_packages, self._package_versions),
            "nvidia": (log_nvidia, _nvidia),
            "docker": (log_docker, _container),
            "system_info": (log_system, _system),
            "gpu_info": (log_gpu, _gpus),
            "distributed_info": (log_distributed, _ranks),
        }

    def fit_start(self, state: State, logger: Logger) -> None:
        """Logs what was asked for."""
        data = {name: read() for name, (is_wanted, read) in self.parts.items() if is_wanted}
        logger.log_hyperparameters({"environment_data": data})

    def _git_info(self) -> dict[str, dict[str, str]]:
        """Returns branch and commit of each checkout, by its folder's name."""
        if not self.workspace_dir.is_dir():
            log.info("%s is no folder, so no commit is logged.", self.workspace_dir)
            return {}
        folders = [self.workspace_dir, *sorted(self.workspace_dir.iterdir())]
        return {
            folder.resolve().name: {
                "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
                "commit": _git(folder, "rev-parse", "HEAD"),
            }
            for folder in folders
            if (folder / ".git").exists()
        }

    def _package_versions(self) -> dict[str, str | None]:
        """Returns the version of each package; None where it is not installed."""
        return {name: _version(name) for name in self.packages_to_log}


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error})"
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvidia() -> dict[str, Any]:
    has_nccl = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    return {
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, nccl.version())) if has_nccl else None,
    }


def _container() -> dict[str, Any]:
    marks = ("/.dockerenv", "/run/.containerenv")
    in_kubernetes = "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        system = platform.system()
    return {"is_container": in_kubernetes or any(map(os.path.exists, marks)), "system": system}


def _system() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu_count": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / GIB, 1),
    }


def _gpus() -> dict[str, Any]:
    devices = [
        torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())
    ]
    return {
        "count": len(devices),
        "names": [device.name for device in devices],
        "memory_gib": [round(device.total_memory / GIB, 1) for device in devices],
    }


def _ranks() -> dict[str, int]:
    world_size, local_world_size = dist.get_world_size(), dist.get_local_world_size()
    return {
        "world_size": world_size,
        "local_world_size": local_world_size,
        "num_nodes": world_size // local_world_size,
    }
