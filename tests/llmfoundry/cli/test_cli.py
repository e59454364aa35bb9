"""The command line: quick to help, plain about faults."""

import functools
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llmfoundry.cli.cli import app
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

ROOT = Path(__file__).parents[3]


def llmfoundry(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llmfoundry.cli.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize(
    "arguments", [(), ("train",), ("data_prep",), ("data_prep", "convert_text_to_mds")]
)
def test_help(arguments: tuple[str, ...]) -> None:
    out = llmfoundry(*arguments, "--help")
    assert out.returncode == 0, out.stderr
    assert "Usage" in out.stdout


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys, llmfoundry.cli.cli; "
        "print([n for n in ('torch', 'transformers', 'omegaconf', 'numpy') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert out.stdout.strip() == "[]", out.stderr


def test_help_is_quick() -> None:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        llmfoundry("--help")
        times.append(time.perf_counter() - start)
    # Half a second by itself; twice that for a machine that is busy with other things.
    assert min(times) < 1.0


def test_a_fault_of_the_users_is_told_without_a_traceback(tmp_path: Path) -> None:
    out = llmfoundry("train", str(tmp_path / "no.yaml"))
    assert out.returncode == 1
    assert out.stderr.startswith("RecipeNotFoundError: Recipe")
    assert "Traceback" not in out.stderr


def test_registry_commands() -> None:
    run = functools.partial(CliRunner().invoke, app)
    assert "decoupled_lionw" in run(["registry", "get", "--group", "optimizers"]).stdout
    nothing = run(["registry", "get", "--group", "nothing"]).stdout
    assert "Group nothing not found in registry. Run `llmfoundry registry get`" in nothing
    found = run(["registry", "find", "optimizers", "no_op"]).stdout
    assert "llmfoundry" in found and "Takes" in found
    assert run(["registry", "find", "optimizers", "nothing"]).exit_code == 1


def test_text_from_the_command_line(tmp_path: Path) -> None:
    train_tokenizer().save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "rows.jsonl").write_text('{"text": "the cat sat on the mat"}\n' * 20)
    arguments = {
        "--path": tmp_path / "rows.jsonl",
        "--out-root": tmp_path / "out",
        "--concat-tokens": 8,
        "--tokenizer": tmp_path / "tokenizer",
        "--eos-text": "</s>",
    }
    flags = [str(each) for pair in arguments.items() for each in pair]
    done = CliRunner().invoke(app, ["data_prep", "convert_dataset_json", *flags])
    assert done.exit_code == 0, done.output
    assert "documents: 20 (0 empty)" in done.stdout
    assert (tmp_path / "out" / "shard.00000.mds.zstd").exists()
    flags += ["--out-root", str(tmp_path / "packed"), "--packing", "best_fit"]
    done = CliRunner().invoke(app, ["data_prep", "convert_dataset_json", *flags])
    assert "padding: " in done.stdout
