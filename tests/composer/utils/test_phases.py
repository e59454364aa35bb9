"""Errors that say who was waited for, and where; with real processes and a real store."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as torch_dist

from composer.utils.phases import LostRanksError, phase

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import sys, time, torch
from composer.utils import dist
from composer.utils.phases import phase
dist.initialize_dist("cpu", timeout=3)
rank = dist.get_global_rank()
what = sys.argv[1]
try:
    with phase("training"):
        dist.barrier()
        if rank == 1 and what == "sleeps":
            with phase("loading the checkpoint"):
                time.sleep(60)  # until the launcher ends it
        if rank == 1 and what == "fails":
            with phase("evaluating"):
                raise ValueError("no such metric")
        dist.all_reduce(torch.ones(1))
except Exception as error:
    print(f"rank {rank}: {type(error).__name__}: {error}", flush=True)
    time.sleep(2)  # the launcher must not end the other before it has spoken
    raise
"""


def outputs(tmp_path: Path, what: str) -> str:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    process = subprocess.run(
        [sys.executable, "-m", "composer", "-n", "2", "--stdout", str(tmp_path / "{rank}.txt"),
         str(program), what],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.returncode == 1, process.stderr
    return process.stdout + (tmp_path / "1.txt").read_text()


def test_a_rank_that_stays_away_is_named_with_its_phase(tmp_path: Path) -> None:
    said = outputs(tmp_path, "sleeps")
    assert (
        'rank 0: LostRanksError: Rank 0 lost other ranks at "training": waiting for rank 1, last '
        'seen at "loading the checkpoint".'
    ) in said, said


def test_a_rank_that_fails_tells_the_others_why(tmp_path: Path) -> None:
    said = outputs(tmp_path, "fails")
    assert "rank 1: ValueError: no such metric" in said
    assert (
        'rank 0: LostRanksError: Rank 0 lost other ranks at "training": rank 1 failed at '
        '"evaluating" with ValueError: no such metric.'
    ) in said, said


def test_alone_a_phase_changes_no_error() -> None:
    with pytest.raises(ValueError, match="^plain$"), phase("outer"), phase("inner"):
        raise ValueError("plain")


def test_it_names_the_innermost_phase_once() -> None:
    with (
        pytest.raises(LostRanksError, match='at "inner"') as caught,
        phase("outer"),
        phase("inner"),
    ):
        raise torch_dist.DistNetworkError("no route")
    assert '"outer"' not in str(caught.value)
    assert isinstance(caught.value.__cause__, torch_dist.DistNetworkError)
