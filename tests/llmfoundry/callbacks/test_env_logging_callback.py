"""What a run says of the machine and the code that it runs on."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest

from llmfoundry.builders.components import build_callback
from llmfoundry.callbacks import EnvironmentLoggingCallback
from tests.composer.callbacks.guarded import batches, make_trainer, memory_of


def _logged(callback: EnvironmentLoggingCallback) -> dict[str, Any]:
    trainer = make_trainer(callback, data=batches(1))
    trainer.fit()
    trainer.close()
    return memory_of(trainer).hyperparameters["environment_data"]


def _commit(folder: Path) -> str:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q", "-b", "trunk"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return head.stdout.strip()


def test_all_parts(tmp_path: Path) -> None:
    for name in ("first", "plain"):
        (tmp_path / name).mkdir()
    commit = _commit(tmp_path / "first")
    callback = build_callback(
        "env_logging",
        {
            "workspace_dir": str(tmp_path),
            "log_system": True,
            "log_gpu": True,
            "log_distributed": True,
            "packages_to_log": ["torch", "no-such-package"],
        },
    )
    data = _logged(callback)
    assert data["git_info"] == {"first": {"branch": "trunk", "commit": commit}}
    torch_version = importlib.metadata.version("torch")
    assert data["package_versions"] == {"torch": torch_version, "no-such-package": None}
    assert data["system_info"]["python"] == platform.python_version()
    assert data["distributed_info"] == {"world_size": 1, "local_world_size": 1, "num_nodes": 1}
    assert data["gpu_info"].keys() == {"count", "names", "memory_gib"}
    assert data["nvidia"].keys() == {"cuda", "cudnn", "nccl"}
    assert data["docker"].keys() == {"is_container", "system"}


def test_a_checkout_itself_and_what_is_off(tmp_path: Path) -> None:
    commit = _commit(tmp_path)
    off = {"log_nvidia": False, "log_docker": False, "log_packages": False}
    data = _logged(EnvironmentLoggingCallback(str(tmp_path), **off))
    assert data == {"git_info": {tmp_path.name: {"branch": "trunk", "commit": commit}}}


def test_defaults_and_a_missing_folder() -> None:
    data = _logged(EnvironmentLoggingCallback())
    assert data.keys() == {"git_info", "package_versions", "nvidia", "docker"}
    assert data["package_versions"]["transformers"]
    with pytest.raises(FileNotFoundError, match="workspace_dir='/nowhere'"):
        EnvironmentLoggingCallback("/nowhere")
    EnvironmentLoggingCallback("/nowhere", log_git=False)
