"""Measures what importing us and asking for help costs: the price of every command and script.

    python benchmarks/import_time.py

Each figure is the median of fresh processes, with and without us taking turns.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

BUDGET_SECONDS = 0.5
BIN = Path(sys.executable).parent
# name -> (command, the command whose time is taken off)
ROWS = {
    "import composer, over import torch": (
        [sys.executable, "-c", "import torch, composer"],
        [sys.executable, "-c", "import torch"],
    ),
    "import the Trainer, over import torch": (
        [sys.executable, "-c", "import torch; from composer import Trainer"],
        [sys.executable, "-c", "import torch"],
    ),
    "import streaming, over import torch": (
        [sys.executable, "-c", "import torch, streaming"],
        [sys.executable, "-c", "import torch"],
    ),
    "composer --help": ([str(BIN / "composer"), "--help"], None),
    "llmfoundry --help": ([str(BIN / "llmfoundry"), "--help"], None),
}


def main() -> None:
    """Prints each cost beside its budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path, default=None, help="write the results here too")
    arguments = parser.parse_args()
    results = {}
    for name, (command, without) in ROWS.items():
        seconds = measure(command, without, arguments.runs)
        results[name] = seconds
        verdict = "within" if seconds <= BUDGET_SECONDS else "OVER"
        print(f"{name:38s} {seconds:6.3f} s  {verdict} the budget of {BUDGET_SECONDS} s")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results) + "\n", encoding="utf-8")


def measure(command: list[str], without: list[str] | None, runs: int) -> float:
    """Median seconds of the command, less the median of the other one."""
    subprocess.run(command, capture_output=True, check=True)  # writes bytecode, warms the disk
    costs = []
    for _ in range(runs):
        base = 0.0 if without is None else seconds_of(without)
        costs.append(seconds_of(command) - base)
    return statistics.median(costs)


def seconds_of(command: list[str]) -> float:
    """Wall-clock time of one run."""
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
