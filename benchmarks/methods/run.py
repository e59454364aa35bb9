"""Measures what each method is worth: quality at equal steps and at equal time, and its cost.

    python benchmarks/methods/run.py [--task language|vision] [--only ROW ...] [--workers 2]

Goes through the rows of `rows.yaml`: each is a set of changes to a task's tuned baseline. For every
seed a row is trained for the baseline's steps and, where its steps cost more or less than the
baseline's, again for as many steps as take the baseline's time; not so a row that was worse at
equal steps and costs more, or better and costs less: that is decided. Between the steps of each
training the baseline's own are timed in the same process, so that costs are of pairs. A row with a
`grid` is tuned with the first seed, like the baseline.

Each core trains by one thread. What is done is kept in `results.jsonl` at once: stopped, the same
command goes on where it was. Then `python benchmarks/methods/report.py` writes the tables of the
method cards. The whole takes under four hours on two cores; nothing of it is in the test suite.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from composer.algorithms.presets import PRESETS

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
BASELINE = "baseline"
TOLERANCE = 0.05
"""Steps that cost this share more or less than the baseline's count as equal."""


@dataclass(frozen=True)
class Job:
    """One training."""

    task: str
    size: str
    row: str
    seed: int
    steps: int
    purpose: str
    """``tune``, ``steps`` (equal steps), ``time`` (equal time) or ``bar`` (a share of it)."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Changes to the baseline, by dotted name."""
    preset: dict[str, Any] | None = None
    """What the preset that they name holds, so that another stack is another job."""

    def key(self) -> str:
        """What says that two jobs are the same."""
        return json.dumps(asdict(self), sort_keys=True)


class Results:
    """The finished jobs, in a file that grows by a line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.by_key: dict[str, dict[str, Any]] = {}
        if path.is_file():
            for line in path.read_text("utf-8").splitlines():
                result = json.loads(line)
                self.by_key[Job(**result["job"]).key()] = result

    def of(self, job: Job) -> dict[str, Any]:
        """Returns a job's result; trains first if that was never done, for tuning or else."""
        job = replace(job, preset=content_of_preset(job.settings))
        if job.key() not in self.by_key:
            tuned = self.by_key.get(replace(job, purpose="tune").key())
            found = tuned if job.purpose == "steps" and tuned else train_in_a_process(job)
            said = {name: value for name, value in asdict(job).items() if value is not None}
            self.by_key[job.key()] = result = {**found, "job": said}
            with self.lock, self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            print(
                f"{job.task}/{job.size} {job.row} seed {job.seed}, {job.purpose} ({job.steps} "
                f"steps): {result['metric']:.4f}, step {result['cost']:.2f} of the baseline's",
                flush=True,
            )
        return self.by_key[job.key()]


def content_of_preset(settings: dict[str, Any]) -> dict[str, Any] | None:
    """What the preset in a row's settings holds; None if they name none."""
    name = settings.get("algorithms.preset") or settings.get("algorithms", {}).get("preset")
    return None if name is None else json.loads(json.dumps(PRESETS[name]._asdict()))


def costs_differ(costs: list[float]) -> bool:
    """Whether steps cost more by the median, or less in all seeds: what costs less is favoured."""
    return statistics.median(costs) > 1 + TOLERANCE or max(costs) < 1 - TOLERANCE


def train_in_a_process(job: Job) -> dict[str, Any]:
    """Trains in a process of its own, so that nothing of one method is left for the next."""
    environment = {
        "PYTHONPATH": str(ROOT),
        "TQDM_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    start = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-W", "ignore", str(FOLDER / f"{job.task}.py"), json.dumps(asdict(job))],
        env={**os.environ, **environment},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise RuntimeError(f"{job} ended with exit code {result.returncode}; see above.")
    return {**json.loads(result.stdout.splitlines()[-1]), "wall": time.monotonic() - start}


def grid_of(row: dict[str, Any], size: str) -> dict[str, list[Any]]:
    """The values that are tried at a size, by name."""
    grid = row.get("grid", {})
    return {name: of[size] if isinstance(of, dict) else of for name, of in grid.items()}


def choices_of(row: dict[str, Any], size: str) -> Iterator[dict[str, Any]]:
    """All combinations of a row's grid, laid over its settings."""
    grid = grid_of(row, size)
    for values in itertools.product(*grid.values()):
        yield {**row.get("settings", {}), **dict(zip(grid, values, strict=True))}


def tuned(results: Results, task: dict[str, Any], job: Job, row: dict[str, Any]) -> dict[str, Any]:
    """The settings of a row's grid with the best metric; the row's own if it has no grid."""
    choices = list(choices_of(row, job.size))
    if len(choices) == 1:
        return choices[0]
    sign = 1 if task["lower_is_better"] else -1
    best = min(
        choices,
        key=lambda settings: (
            sign * results.of(replace(job, purpose="tune", settings=settings))["metric"]
        ),
    )
    for name, values in grid_of(row, job.size).items():
        if len(values) > 1 and best[name] in (values[0], values[-1]):
            print(
                f"{job.task}/{job.size} {job.row}: the best {name}, {best[name]}, is at the edge "
                "of its grid; widen it in rows.yaml.",
                flush=True,
            )
    return best


def measure(results: Results, name: str, task: dict[str, Any], row_name: str, seeds: list[int]):
    """Trains all that a row needs."""
    row = {"settings": {}, **(task["rows"][row_name] or {})}
    for size, steps in task["sizes"].items():
        if size not in row.get("sizes", [next(iter(task["sizes"]))]):
            continue
        like = Job(name, size, BASELINE, seeds[0], steps, "tune")
        base = tuned(results, task, like, task["rows"][BASELINE])
        over = {**row, "settings": {**base, **row["settings"]}}
        best = tuned(results, task, replace(like, row=row_name), over)

        def train(
            row_name: str,
            purpose: str,
            settings: dict[str, Any],
            share: float = 1.0,
            like: Job = like,
        ) -> list[dict[str, Any]]:
            steps = round(like.steps * share)
            job = replace(like, row=row_name, purpose=purpose, settings=settings, steps=steps)
            return [results.of(replace(job, seed=seed)) for seed in seeds]

        own = train(row_name, "steps", best)
        if row_name == BASELINE:
            continue
        other = row.get("against", BASELINE)
        others = train(other, "steps", {**base, **task["rows"][other].get("settings", {})})
        theirs_cost = 1.0
        if other != BASELINE:
            theirs_cost = statistics.median(each["cost"] for each in others)
        costs = [each["cost"] / theirs_cost for each in own]
        cost = statistics.median(costs)
        gains = [
            (theirs["metric"] - mine["metric"]) * (1 if task["lower_is_better"] else -1)
            for mine, theirs in zip(own, others, strict=True)
        ]
        if costs_differ(costs) and (cost > 1) == (statistics.median(gains) > 0):
            train(row_name, "time", best, 1 / cost)
        if "share" in row:  # a preset is held against a bar
            train(row_name, "bar", best, row["share"] / cost)


def main() -> None:
    """Measures the rows that were asked for."""
    tasks: dict[str, Any] = yaml.safe_load((FOLDER / "rows.yaml").read_text("utf-8"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task", choices=sorted(tasks), action="append")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="rows (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[17, 18, 19])
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="trainings at once")
    parser.add_argument("--results", type=Path, default=FOLDER / "results.jsonl")
    arguments = parser.parse_args()
    names = arguments.task or list(tasks)
    known = {row_name for name in names for row_name in tasks[name]["rows"]}
    if unknown := set(arguments.only or ()) - known:
        parser.error(f"no such rows: {', '.join(sorted(unknown))}; there are {sorted(known)}")
    results = Results(arguments.results)
    with ThreadPoolExecutor(arguments.workers) as pool:
        # Baselines first: every other row begins with theirs.
        for wanted in ([BASELINE], arguments.only or sorted(known)):
            done = [
                pool.submit(measure, results, name, tasks[name], row_name, arguments.seeds)
                for name in names
                for row_name in wanted
                if row_name in tasks[name]["rows"]
            ]
            for each in done:
                each.result()


if __name__ == "__main__":
    main()
