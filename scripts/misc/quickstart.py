"""Runs the whole road on real text: fetch, tokenize, train, stop, resume, export, score, generate.

Every step is an ordinary command of this repository. It is printed before it runs, so that you can
type it yourself. A step that has finished is not run again; a training that was stopped goes on.

    python scripts/misc/quickstart.py [--text FOLDER] [--out FOLDER] [key=value ...]

Pairs of key and value change the training recipe, as they would behind `train.py`.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
RECIPE = "yamls/mpt-tiny-cpu.yaml"
VOCAB_SIZE, SEQUENCE_LENGTH = 4096, 256
PROMPTS = ("Enter the King, and", "My lord, I am", "O Romeo,")
PROGRESS = re.compile(r"\[batch=(\d+)/(\d+)\]")
METRIC = re.compile(r"\s*(Train|Eval) (\S+): (\S+)")
SHOWN = {"loss/train/total": "loss", "metrics/eval/LanguageCrossEntropy": "validation loss"}

console = Console(highlight=False)


@dataclass(frozen=True)
class Step:
    """One command of the road."""

    name: str
    """Short name; the step's output is kept in `logs/<name>.log`."""
    says: str
    """What it is for, in a line."""
    command: tuple[str, ...]
    """What is typed."""
    trains: bool = False
    """Whether its output is a training's, which is shown in short."""
    stop_halfway: bool = False
    """Whether to press Ctrl-C when half of the training is done."""


def main() -> int:
    """Runs what is left to run, then prints the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--text", default=None, help="folder of .txt files (default: Shakespeare)")
    parser.add_argument("--out", default="quickstart", help="folder for all that is made")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the recipe")
    arguments = parser.parse_args()
    os.chdir(ROOT)
    out = Path(arguments.out)
    (out / "logs").mkdir(parents=True, exist_ok=True)
    (out / ".gitignore").write_text("*\n", encoding="utf-8")
    diary, ran = Diary(out / "finished.json"), 0
    steps = list_steps(out, arguments.text, arguments.overrides)
    for number, step in enumerate(steps, start=1):
        if diary.has(step):
            console.print(f"[dim]{number}/{len(steps)} {step.name}: done already[/dim]")
            continue
        console.rule(f"{number}/{len(steps)} {step.name}: {step.says}", align="left")
        start = time.monotonic()
        code = run(step, fill(step, out), out / "logs" / f"{step.name}.log")
        if code != 0:
            console.print(f"[red]{step.name} ended with exit code {code}.[/red]")
            console.print(
                "Run the same command again when the cause is gone: it goes on from here."
            )
            return code
        diary.add(step, time.monotonic() - start)
        ran += 1
    report(out, diary)
    if ran == 0:
        console.print((out / "logs" / "generate.log").read_text("utf-8"), markup=False)
        console.print(f"Everything was done already. To start over, remove the folder {out}.")
    return 0


def list_steps(out: Path, text: str | None, overrides: Sequence[str]) -> list[Step]:
    """The road, in order."""
    rows = [*data_rows(out, text), *training_rows(out, overrides), *model_rows(out)]
    return [
        Step(name, says, tuple(shlex.split(line)), line.startswith("composer"), name == "train")
        for name, says, line in rows
    ]


def data_rows(out: Path, text: str | None) -> list[tuple[str, str, str]]:
    """From text to shards: (name, what it is for, command) of each step."""
    rows = [
        (
            "split",
            "hold out whole works for validation",
            f"llmfoundry data_prep split_text --input-folder {shlex.quote(text or f'{out}/raw')} "
            f"--output-folder {out}/text",
        ),
        (
            "tokenizer",
            "a BPE tokenizer of the training text",
            f"llmfoundry data_prep train_tokenizer --input-folder {out}/text/train --output-folder "
            f"{out}/tokenizer --vocab-size {VOCAB_SIZE} --model-max-length {SEQUENCE_LENGTH}",
        ),
    ]
    if text is None:
        fetch = f"llmfoundry data_prep fetch_text --output-folder {out}/raw"
        rows.insert(0, ("fetch", "free text, by package name and version", fetch))
    for split in ("train", "val"):
        line = (
            f"python scripts/data_prep/convert_text_to_mds.py --input_folder {out}/text/{split} "
            f"--output_folder {out}/tokens/{split} --tokenizer {out}/tokenizer --concat_tokens "
            f"{SEQUENCE_LENGTH} --use_tokenizer_eos"
        )
        rows.append((f"tokens-{split}", f"shards of {SEQUENCE_LENGTH} tokens a sample", line))
    return rows


def training_rows(out: Path, overrides: Sequence[str]) -> list[tuple[str, str, str]]:
    """From shards to a checkpoint."""
    places = [
        f"variables.data_local={out}/tokens",
        f"variables.tokenizer={out}/tokenizer",
        f"save_folder={out}/checkpoints",
    ]
    changes = shlex.join([*([] if str(out) == "quickstart" else places), *overrides])
    train = (
        f"composer scripts/train/train.py {RECIPE} "
        f"callbacks.speed_monitor.gpu_flops_available=PEAK {changes}"
    )
    peak = f"python benchmarks/matmul_peak.py --json {out}/peak.json"
    return [
        ("peak", "what this machine can do, to hold the training against", peak),
        ("train", "train, and stop it with Ctrl-C halfway", train),
        ("resume", "the same command again goes on from the newest checkpoint", train),
    ]


def model_rows(out: Path) -> list[tuple[str, str, str]]:
    """From the checkpoint to a model that others load, its score and its words."""
    export = (
        "python scripts/inference/convert_composer_to_hf.py --composer_path "
        f"{out}/checkpoints/latest-rank0.pt --hf_output_path {out}/hf"
    )
    score = (
        f"python scripts/misc/score_tokens.py -n {out}/hf --local {out}/tokens --text "
        f"{out}/text/val --json {out}/score.json"
    )
    generate = (
        f"python scripts/inference/hf_generate.py -n {out}/hf --max_new_tokens 60 --temperature "
        f"0.8 --top_k 40 --prompts {shlex.join(PROMPTS)}"
    )
    return [
        ("export", "to a folder that plain transformers loads", export),
        ("score", "the exported model and n-gram models on the validation shards", score),
        ("generate", "let it write", generate),
    ]


def fill(step: Step, out: Path) -> Sequence[str]:
    """The command with the measured peak in the place of the word PEAK."""
    peak = out / "peak.json"
    if not peak.is_file():
        return step.command
    rate = json.loads(peak.read_text("utf-8"))["flops_per_second"]
    return [word.replace("PEAK", f"{rate:.3g}") for word in step.command]


def run(step: Step, command: Sequence[str], log: Path) -> int:
    """Prints the command, runs it, shows and keeps what it says; returns its exit code.

    A step with `stop_halfway` gets a Ctrl-C in the middle of the training, and whatever its exit
    code is after that counts as success.
    """
    console.print(f"[bold cyan]$ {escape(shlex.join(command))}[/bold cyan]", soft_wrap=True)
    if step.trains:
        console.print(f"[dim]in short; all that it says is in {log}[/dim]")
    # Programs of this environment come first, and their output comes line by line. Threads that
    # wait asleep cost nothing on a quiet machine, and make a busy one several times as fast.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    settings = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    child = subprocess.Popen(
        command,
        env={"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PATH": path, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that a Ctrl-C reaches the child's processes once, through us
    )
    halfway = stopped = False
    try:
        with log.open("a", encoding="utf-8") as copy:
            for line in child.stdout or ():
                copy.write(line)
                show(line.rstrip("\n"), step.trains)
                halfway = halfway or past_the_middle(line)
                if step.stop_halfway and halfway and not stopped and "loss/train" in line:
                    console.print("[bold cyan]^C[/bold cyan]")
                    os.killpg(child.pid, signal.SIGINT)
                    stopped = True
        code = child.wait()
    except KeyboardInterrupt:
        os.killpg(child.pid, signal.SIGINT)
        child.wait()
        return 130
    return 0 if stopped else code


def show(line: str, in_short: bool) -> None:
    """Prints a line; of a training's metrics only the losses, of its evaluations only the end."""
    metric = METRIC.fullmatch(line.rstrip()) if in_short else None
    if metric is None and not (in_short and "[Eval batch=" in line):
        console.print(line, markup=False, soft_wrap=True, end="" if is_progress(line) else "\n")
    elif metric is not None and metric.group(2) in SHOWN:
        console.print(f"  {SHOWN[metric.group(2)]} {metric.group(3)}")


def is_progress(line: str) -> bool:
    """Whether the line is the head of the training's metrics, such as `[batch=10/100]:`."""
    return PROGRESS.fullmatch(line.rstrip(": ")) is not None


def past_the_middle(line: str) -> bool:
    """Whether a line of the training's output tells of a batch in its second half."""
    match = PROGRESS.search(line)
    return match is not None and 2 * int(match.group(1)) > int(match.group(2))


class Diary:
    """Which commands have finished, kept on disk; a changed command makes all later ones undone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = json.loads(path.read_text("utf-8")) if path.is_file() else []
        self.place = 0

    def has(self, step: Step) -> bool:
        """Whether this step, which comes after those asked before, has finished."""
        row = self.rows[self.place] if self.place < len(self.rows) else None
        if row is not None and row["command"] == list(step.command):
            self.place += 1
            return True
        if row is not None and row["name"] == step.name:
            raise SystemExit(
                f"{self.path.parent} was made by another command for the step {step.name!r}:\n"
                f"  {shlex.join(row['command'])}\nTake another folder (--out) or remove this one."
            )
        return False

    def add(self, step: Step, seconds: float) -> None:
        """Notes that the step has finished."""
        row = {"name": step.name, "command": list(step.command), "seconds": round(seconds, 1)}
        self.rows = [*self.rows[: self.place], row]
        self.place += 1
        self.path.write_text(json.dumps(self.rows, indent=1) + "\n", encoding="utf-8")

    def seconds(self) -> float:
        """Time of all finished steps together."""
        return sum(row["seconds"] for row in self.rows)


def read_metrics(logs: Sequence[Path]) -> dict[str, list[tuple[int, float]]]:
    """Metric -> (batch, value) as the console logger printed them, later logs replacing earlier."""
    found: dict[str, dict[int, float]] = {}
    for log in logs:
        batch = 0
        for line in log.read_text("utf-8").splitlines():
            if match := PROGRESS.search(line):
                batch = int(match.group(1))
            elif match := METRIC.fullmatch(line.rstrip()):
                try:
                    found.setdefault(match.group(2), {})[batch] = float(match.group(3))
                except ValueError:  # a metric that is no number, such as a unit
                    continue
    return {name: sorted(points.items()) for name, points in found.items()}


def report(out: Path, diary: Diary) -> None:
    """Prints the table of results and draws the loss curve."""
    metrics = read_metrics([out / "logs" / "train.log", out / "logs" / "resume.log"])
    score = json.loads((out / "score.json").read_text("utf-8"))
    losses, density = score["losses"], score["bytes_per_token"]
    curve = metrics["loss/train/total"]
    recent = [value for _, value in curve[-max(1, len(curve) // 10) :]]
    draw(metrics, losses, out / "loss.png")
    table = Table(title="Results", show_header=False)
    table.add_column("what")
    table.add_column("value", justify="right")
    bits = losses["model"] / 0.6931471805599453 / density
    checkpoint = (out / "checkpoints" / "latest-rank0.pt").resolve().stat().st_size
    for name, value in (
        ("train loss (mean of the last tenth)", f"{sum(recent) / len(recent):.3f}"),
        ("validation loss", f"{losses['model']:.3f}"),
        ("  of a bigram model of the same tokens", f"{best_bigram(losses):.3f}"),
        ("validation perplexity", f"{2.718281828459045 ** losses['model']:.1f}"),
        ("validation bits per byte", f"{bits:.3f}"),
        ("tokens per second", f"{typical(metrics, 'throughput/device/tokens_per_sec'):,.0f}"),
        ("MFU (of the measured matmul peak)", f"{typical(metrics, 'throughput/device/mfu'):.1%}"),
        ("checkpoint", f"{checkpoint / 1e6:.1f} MB"),
        ("time of all steps", f"{diary.seconds():.0f} s"),
    ):
        table.add_row(name, value)
    console.print(table)
    console.print(f"Model: {out}/hf   Checkpoints: {out}/checkpoints   Loss curve: {out}/loss.png")


def best_bigram(losses: dict[str, float]) -> float:
    """The lowest loss among the bigram models."""
    return min(loss for name, loss in losses.items() if name.startswith("bigram"))


def typical(metrics: dict[str, list[tuple[int, float]]], name: str) -> float:
    """The median of a metric; not a number if it was never logged."""
    values = sorted(value for _, value in metrics.get(name, []))
    return values[len(values) // 2] if values else float("nan")


def draw(metrics: dict[str, list[tuple[int, float]]], losses: dict[str, float], path: Path) -> None:
    """Draws training and validation loss over batches, and the bigram's loss as a line."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.plot(*zip(*metrics["loss/train/total"], strict=True), linewidth=1, label="train")
    evals = metrics.get("metrics/eval/LanguageCrossEntropy", [])
    if evals:
        axes.plot(*zip(*evals, strict=True), "o-", label="validation")
    axes.axhline(best_bigram(losses), color="gray", linestyle="--", label="bigram (validation)")
    axes.set(xlabel="batch", ylabel="loss (nats per token)", title="mpt-tiny-cpu")
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
