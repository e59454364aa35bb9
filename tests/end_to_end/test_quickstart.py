"""The quickstart on made-up text with a very small model: every step, the stop, the second run."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SMALLER = (
    "max_duration=40ba",
    "save_interval=10ba",
    "eval_interval=20ba",
    "scheduler.t_warmup=5ba",
    "model.d_model=32",
    "model.n_layers=1",
    "global_train_batch_size=4",
    "device_train_microbatch_size=4",
)


def write_text(folder: Path) -> None:
    """Twenty works of random sentences."""
    generator = random.Random(17)
    words = ["".join(generator.choices("aeioustrnml", k=4)) for _ in range(200)]
    folder.mkdir()
    for number in range(20):
        lines = (" ".join(generator.choices(words, k=8)).capitalize() + "." for _ in range(150))
        (folder / f"work{number}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(text: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/misc/quickstart.py", "--text", str(text), "--out", str(out)]
    return subprocess.run(
        [*command, *SMALLER], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )


@pytest.mark.slow
def test_the_whole_road_and_a_second_run(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, MptForCausalLM

    text, out = tmp_path / "text", tmp_path / "out"
    write_text(text)
    first = run(text, out)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "^C" in first.stdout

    # The second training went on from a checkpoint instead of starting anew, and to the end.
    resumed = (out / "logs" / "resume.log").read_text("utf-8")
    assert "[batch=1/40]" not in resumed
    assert "[batch=40/40]" in resumed

    model = AutoModelForCausalLM.from_pretrained(out / "hf")
    assert isinstance(model, MptForCausalLM)
    assert AutoTokenizer.from_pretrained(out / "hf").eos_token == "<|endoftext|>"
    losses = json.loads((out / "score.json").read_text("utf-8"))["losses"]
    assert set(losses) > {"model", "unigram"}
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    for row in ("validation loss", "bits per byte", "tokens per second", "MFU", "checkpoint"):
        assert row in first.stdout
    assert "nan" not in first.stdout[first.stdout.index("Results") :]

    second = run(text, out)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "Everything was done already" in second.stdout
    assert second.stdout.count("done already") == 11

    # A folder of one text is not mixed up with another.
    other = tmp_path / "other"
    write_text(other)
    third = run(other, out)
    assert third.returncode != 0
    assert "made by another command" in third.stderr
