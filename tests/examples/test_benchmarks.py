"""The benchmarks of a training step run and say what they measured; a test judges no times."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "result"),
    [
        ("trainer_overhead", "our step is", "ratio"),
        ("unhandled_events", "13 unheard events a step, 1,000 callbacks", "share"),
    ],
)
def test_a_benchmark_runs(script: str, words: str, result: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / f"{script}.py")]
    options = {"rounds": 1, "steps": 20, "batch_size": 4, "features": 8, "json": figures}
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert words in done.stdout, done.stderr  # of so small a step it is over its bar
    assert json.loads(figures.read_text())[result] > 0
