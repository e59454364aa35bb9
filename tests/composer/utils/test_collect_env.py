"""The report of the machine."""

import io
import subprocess
import sys

import pytest
import torch

from composer._version import __version__
from composer.utils import collect_env


def test_facts_for_the_checkpoint() -> None:
    facts = collect_env.get_composer_env_dict()
    assert list(facts) == [
        "composer_version",
        "composer_commit_hash",
        "cpu_model",
        "cpu_count",
        "num_nodes",
        "gpu_model",
        "num_gpus_per_node",
        "num_gpus",
        "cuda_device_count",
    ]
    assert facts["composer_version"] == __version__
    assert facts["num_nodes"] == facts["num_gpus"] == 1
    if not torch.cuda.is_available():
        assert (facts["gpu_model"], facts["num_gpus_per_node"]) == ("N/A", 0)


def test_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(collect_env, "get_torch_env", lambda: "torch's own report")
    file = io.StringIO()
    collect_env.print_env(file)
    assert "torch's own report" in file.getvalue()
    assert f"composer_version: {__version__}" in file.getvalue()
    collect_env.main()
    assert "Collecting system information..." in capsys.readouterr().out


PROGRAM = """
import sys
from composer.utils import collect_env
collect_env.get_torch_env = lambda: "torch's own report"
collect_env.configure_excepthook()
collect_env.configure_excepthook()
{line}
raise ValueError("went wrong")
"""


def test_report_comes_before_an_uncaught_error() -> None:
    shown, hidden = (
        subprocess.run(
            [sys.executable, "-c", PROGRAM.format(line=line)], capture_output=True, text=True
        ).stderr
        for line in ("", "collect_env.disable_env_report()")
    )
    assert shown.count("System Environment Report") == 1
    assert shown.index("System Environment Report") < shown.index("ValueError: went wrong")
    assert "System Environment Report" not in hidden and "ValueError: went wrong" in hidden
