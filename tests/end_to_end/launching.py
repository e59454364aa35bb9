"""Starts the launcher with the recording program, and reads what its ranks wrote down."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("recording_program.py")
LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")


def start(
    options: Sequence[object], arguments: Sequence[object], before: Sequence[str] = (), **env: str
) -> "subprocess.Popen[str]":
    """Starts ``composer [options] recording_program.py [arguments]``, behind another command."""
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCH_VARIABLES}
    return subprocess.Popen(
        [*before, sys.executable, "-m", "composer", *map(str, (*options, PROGRAM, *arguments))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**inherited, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **env},
    )


def read_records(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Returns the lines of all ranks and tries, by batch."""
    lines = defaultdict(list)
    for path in sorted(folder.glob("record-*.jsonl")):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            lines[line["batch"]].append(line)
    return dict(lines)


def ids_by_batch(folder: Path) -> dict[int, set[tuple[int, ...]]]:
    """Returns what the ranks saw in each batch, without doubles of a batch that was done again."""
    return {
        batch: {tuple(line["ids"]) for line in lines}
        for batch, lines in read_records(folder).items()
    }
