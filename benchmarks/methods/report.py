"""Writes what `run.py` measured into the method cards, `docs/methods/*.md`, and their index.

    python benchmarks/methods/report.py [--check]

A card takes the rows that its line `<!-- measured: ROW ... -->` names, or all; the table goes
between this line and `<!-- end -->`. With --check nothing is written, and pages that are not up to
date are named.
"""

import argparse
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from run import BASELINE, costs_differ

FOLDER = Path(__file__).resolve().parent
CARDS = FOLDER.parents[1] / "docs" / "methods"
PLACE = re.compile(r"(<!-- measured: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = (
    "| task, size | row | steps | baseline | equal steps | equal time | step costs | better in "
    "| pays here |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
)
BAR_HEAD = (
    "| task, size | row | share of the baseline's time | baseline | reached | better in |\n"
    "| --- | --- | --- | --- | --- | --- |\n"
)
METRICS = {"language": "validation loss", "vision": "accuracy"}

Found = dict[tuple[str, str, str], dict[str, dict[int, dict[str, Any]]]]


def read(path: Path) -> Found:
    """Results by (task, size, row), purpose and seed."""
    found: Found = defaultdict(lambda: defaultdict(dict))
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        result = json.loads(line)
        job = result["job"]
        if job["purpose"] != "tune":
            found[job["task"], job["size"], job["row"]][job["purpose"]][job["seed"]] = result
    return found


def median(results: dict[int, dict[str, Any]], what: str = "metric") -> float:
    """The median over the seeds."""
    return statistics.median(result[what] for result in results.values())


def compared(
    own: dict[int, Any], base: dict[int, Any], lower_is_better: bool
) -> tuple[str, str | None]:
    """In how many seeds the method was better; and the verdict, if it is the same in all."""
    pairs = [(own[seed]["metric"], base[seed]["metric"]) for seed in own if seed in base]
    better = sum((mine < theirs) == lower_is_better and mine != theirs for mine, theirs in pairs)
    return f"{better} of {len(pairs)} seeds", {0: "no", len(pairs): "yes"}.get(better)


def row_of(found: Found, key: tuple[str, str, str], task: dict[str, Any]) -> str:
    """A line of the table: medians over the seeds, and in how many the method was better."""
    kind, size, name = key
    against, lower_is_better = task["rows"][name].get("against", BASELINE), task["lower_is_better"]
    base, own = found[kind, size, against]["steps"], found[key]["steps"]
    theirs_cost = 1 if against == BASELINE else median(base, "cost")
    cost = median(own, "cost") / theirs_cost
    decided = "worse" if cost > 1 else "better"
    # Steps that cost the same need no trainings of the same time.
    differ = costs_differ([each["cost"] / theirs_cost for each in own.values()])
    timed = found[key]["time"] if differ else own
    seeds, verdict = compared(timed or own, base, lower_is_better)
    cells = [
        f"{kind}, {size}",
        f"`{name}`" + ("" if against == BASELINE else f" against `{against}`"),
        str(next(iter(own.values()))["job"]["steps"]),
        f"{median(base):.4f}",
        f"{median(own):.4f}",
        f"{median(timed):.4f}" if timed else decided,
        f"{cost:.2f}",
        seeds,
        verdict or "unclear",
    ]
    return "| " + " | ".join(cells) + " |\n"


def bar_of(found: Found, key: tuple[str, str, str], task: dict[str, Any]) -> str:
    """A line of the bars: what a preset reaches in a share of the baseline's time."""
    kind, size, name = key
    base, own = found[kind, size, BASELINE]["steps"], found[key]["bar"]
    steps = next(iter(base.values()))["job"]["steps"]
    shares = [each["job"]["steps"] * each["cost"] / steps for each in own.values()]
    cells = [
        f"{kind}, {size}",
        f"`{name}`",
        f"{statistics.median(shares):.2f}",
        f"{median(base):.4f}",
        f"{median(own):.4f}",
        compared(own, base, task["lower_is_better"])[0],
    ]
    return "| " + " | ".join(cells) + " |\n"


def table(found: Found, names: list[str], tasks: dict[str, Any]) -> str:
    """The table of these rows, for all tasks and sizes at which they were measured."""
    wanted = [key for key in sorted(found) if key[2] in names or names == ["all"]]
    keys = [key for key in wanted if key[2] in tasks[key[0]]["rows"] and "steps" in found[key]]
    keys = [key for key in keys if key[2] != BASELINE]
    if not keys:
        return "Not measured yet.\n"

    def lines(head: str, line: Callable[..., str], of: list[tuple[str, str, str]]) -> str:
        return head + "".join(line(found, key, tasks[key[0]]) for key in of)

    says = "; ".join(f"{kind}: {METRICS[kind]}" for kind in sorted({key[0] for key in keys}))
    only = "" if names == ["all"] else f" --only {' '.join(names)}"
    text = (
        f"Medians of the seeds ({says}). Again with: `python benchmarks/methods/run.py{only}`\n\n"
    )
    text += lines(HEAD, row_of, keys)
    if held := [key for key in keys if "bar" in found[key]]:
        text += "\n" + lines(BAR_HEAD, bar_of, held)
    return text


def main() -> int:
    """Writes or checks all cards; returns 1 if a check found one that is not up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    found = read(FOLDER / "results.jsonl")
    tasks = yaml.safe_load((FOLDER / "rows.yaml").read_text("utf-8"))
    stale = []
    for card in sorted(CARDS.glob("*.md")):
        old = card.read_text("utf-8")
        new = PLACE.sub(
            lambda match: match[1] + table(found, match[2].split(), tasks) + match[3], old
        )
        if new != old:
            stale.append(card.name)
            if not arguments.check:
                card.write_text(new, encoding="utf-8")
    if arguments.check and stale:
        print(f"not up to date: {', '.join(stale)}; run python {sys.argv[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
