"""Measures the data path: rows from disk, the text loader, a large index, a step's share, writing.

    python benchmarks/data.py [--only read index step prepare] [--peers /tmp/peers]

*read*: tokens a second of shuffled 2,049-token rows from the local disk, with and without worker
processes; each way in a process of its own, in turns, by the median of the rounds. A peer is
measured if it can be imported (``pip install --no-deps --target /tmp/peers mosaicml-streaming
litdata``, with what they miss), and said to be missing otherwise. *index*: from nothing to the
first batch of 10,000 shards. *step*: the share of a 125M model's training step that waits for the
loader. *prepare*: `convert_dataset_json --concat_tokens` with two processes, beside what upstream
does: a call of the tokenizer for each document, in two loader workers. Exits with 1 if a bar is
missed.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from llmfoundry.builders import build_dataloader
from llmfoundry.models import ComposerMPTCausalLM
from streaming import MDSWriter

ROOT = Path(__file__).resolve().parents[1]
READER = ROOT / "benchmarks" / "readers" / "read_rows.py"
TOKENS_PER_ROW = 2049
WAYS = ("mds", "flat", "text", "memmap", "mosaicml", "litdata")
PEERS = ("mosaicml", "litdata")
WORKERS = (0, 2)
SHARDS = 10_000
PEER_BARS = {"mosaicml": 3.0, "litdata": 1.0}
"""Our rate from MDS over the peer's."""
FLAT_BAR = 20.0
"""Million tokens a second and core."""
FIRST_BATCH_BAR, SHARE_BAR, PREPARE_BAR = 2.0, 0.01, 3.0
"""Seconds; the loader's share of a step; our rate over that of upstream's way."""
CHARACTERS = 2000


def read(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Returns the medians of tokens a second by way and workers, and prints them."""
    write(folder / "rows", arguments.rows)
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(arguments.rounds):
        found = {}
        jobs = [(way, workers) for way in arguments.ways for workers in WORKERS]
        for way, workers in jobs if number % 2 == 0 else reversed(jobs):
            found[f"{way} {workers}"] = read_once(arguments, way, folder / "rows", workers)
        rounds.append(found)
    result = {}
    for name in rounds[0]:
        if "missing" in rounds[0][name]:
            print(f"{name:12} not measured: {rounds[0][name]['missing']}")
            continue
        for clock in ("wall", "cpu"):
            rates = [each[name]["tokens"] / each[name][clock] / 1e6 for each in rounds]
            result[f"{name} {clock}"] = statistics.median(rates)
        print(
            f"{name:12} {result[f'{name} wall']:8.1f} Mtok/s, "
            f"{result[f'{name} cpu']:8.1f} Mtok a CPU second"
        )
    return result


def read_once(
    arguments: argparse.Namespace, way: str, folder: Path, workers: int
) -> dict[str, Any]:
    """Returns the figures of one pass by one way, from a process of its own."""
    options = {"rows": arguments.rows, "batch_size": arguments.batch_size, "workers": workers}
    options["tokenizer"] = arguments.tokenizer
    command = [sys.executable, str(READER), way, str(folder)]
    command += [f"--{name}={value}" for name, value in options.items()]
    path = arguments.peers if way in PEERS else str(ROOT)
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path}, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def write(folder: Path, rows: int) -> None:
    """Writes rows of random tokens as MDS shards, and as one flat file."""
    some = np.random.default_rng(0).integers(0, 50_000, (64, TOKENS_PER_ROW), np.int32)
    with MDSWriter(columns={"tokens": "ndarray:int32"}, out=str(folder)) as writer:
        for row in range(rows):
            writer.write({"tokens": some[row % 64]})
    flat = folder.with_name(f"{folder.name}-flat")
    flat.mkdir()
    with (flat / "tokens.bin").open("wb") as file:
        for row in range(rows):
            file.write(some[row % 64].astype(np.uint16).tobytes())


def index(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Returns the seconds until the first batch of very many shards is there, by workers."""
    place = folder / "index"
    write(place, 16)
    listed = json.loads((place / "index.json").read_text("utf-8"))
    (shard,) = listed["shards"]
    listed["shards"] = []
    for number in range(SHARDS):
        data = {**shard["raw_data"], "basename": f"{number:05}.mds"}
        listed["shards"].append({**shard, "raw_data": data})
        os.link(place / shard["raw_data"]["basename"], place / data["basename"])
    (place / "index.json").write_text(json.dumps(listed), encoding="utf-8")
    result = {}
    for workers in WORKERS:
        seconds = []
        for _ in range(arguments.rounds):
            start = time.perf_counter()
            next(iter(text_loader(arguments, place, workers, arguments.batch_size)))
            seconds.append(time.perf_counter() - start)
        median = result[f"first batch {workers}"] = statistics.median(seconds)
        print(f"first batch of {SHARDS:,} shards, {workers} workers: {median:.2f} s")
    return result


def text_loader(
    arguments: argparse.Namespace, folder: Path, workers: int, batch_size: int
) -> DataLoader[Any]:
    """Returns the `text` loader as a recipe builds it."""
    from transformers import AutoTokenizer

    config = {
        "name": "text", "drop_last": True, "num_workers": workers,
        "dataset": {"local": str(folder), "max_seq_len": arguments.sequence, "shuffle": True},
    }  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    loader = build_dataloader(config, tokenizer, batch_size).dataloader
    assert isinstance(loader, DataLoader)
    return loader


def step(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Returns the share of a training step that waits for the loader, by workers."""
    write(folder / "step", 64)
    model = ComposerMPTCausalLM(
        vocab_size=50368, max_seq_len=arguments.sequence, d_model=arguments.width, n_heads=12,
        n_layers=arguments.layers, use_train_metrics=False,
    ).train()  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    result = {}
    for workers in WORKERS:
        batches = iter(text_loader(arguments, folder / "step", workers, 1))
        shares = []
        for _ in range(arguments.rounds + 1):
            start = time.perf_counter()
            batch = next(batches)
            waited = time.perf_counter() - start
            with torch.autocast("cpu", torch.bfloat16):
                loss = model.loss(model(batch), batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            shares.append(waited / (time.perf_counter() - start))
        # The first batch starts the workers and opens the shards; a run does that once.
        result[f"share {workers}"] = statistics.median(shares[1:])
        print(f"loader's share of a step, {workers} workers: {result[f'share {workers}']:.4%}")
    return result


def prepare(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Returns tokens a second of our preparation and of upstream's way."""
    from transformers import AutoTokenizer

    texts = folder / "texts"
    write_texts(arguments, texts)
    end = AutoTokenizer.from_pretrained(arguments.tokenizer).eos_token
    common = [sys.executable, str(ROOT / "scripts" / "data_prep" / "convert_dataset_json.py")]
    commands = {
        "upstream": [sys.executable, str(READER.with_name("one_per_document.py")), str(texts)],
        "ours": [*common, "--num_workers=2", f"--path={texts}", f"--eos_text={end}"],
    }
    commands["ours"] += [f"--concat_tokens={TOKENS_PER_ROW}", f"--tokenizer={arguments.tokenizer}"]
    rates: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(arguments.rounds):
        for name in commands if number % 2 == 0 else reversed(commands):
            out = folder / f"{name}-{number}"
            last = [f"--out_root={out}"]
            if name == "upstream":
                last = [str(out), arguments.tokenizer, str(TOKENS_PER_ROW)]
            seconds = seconds_of(arguments, [*commands[name], *last])
            listed = json.loads((out / "index.json").read_text("utf-8"))["shards"]
            tokens = TOKENS_PER_ROW * sum(shard["samples"] for shard in listed)
            rates[name].append(tokens / seconds)
    result = {name: statistics.median(each) for name, each in rates.items()}
    ratios = [a / b for a, b in zip(rates["ours"], rates["upstream"], strict=True)]
    result["over"] = statistics.median(ratios)
    for name in commands:
        print(f"prepare, {name:8} {result[name] / 1e6:8.2f} Mtok a {arguments.clock} second")
    print(f"prepare, ours over upstream's way: {result['over']:.2f}")
    return result


def write_texts(arguments: argparse.Namespace, folder: Path) -> None:
    """Writes a text folder as two JSON files of documents of some 2,000 characters, as C4's are."""
    folder.mkdir()
    documents, lines, size = [], [], 0
    for path in sorted(arguments.text.rglob("*.txt")):
        for line in path.read_text("utf-8").splitlines(keepends=True):
            lines.append(line)
            size += len(line)
            if size >= CHARACTERS:
                documents.append("".join(lines))
                lines, size = [], 0
    for half in range(2):
        with (folder / f"{half}.jsonl").open("w", encoding="utf-8") as file:
            for _ in range(arguments.copies):
                for document in documents[half::2]:
                    file.write(json.dumps({"text": document}) + "\n")


def seconds_of(arguments: argparse.Namespace, command: list[str]) -> float:
    """Returns how long a command takes, by the clock that was asked for."""
    wall, cpu = time.perf_counter(), children_seconds()
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    wall, cpu = time.perf_counter() - wall, children_seconds() - cpu
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
    return {"wall": wall, "cpu": cpu}[arguments.clock]


def children_seconds() -> float:
    """Returns the processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def missed(result: dict[str, float], clock: str) -> list[str]:
    """Returns the bars that are missed, as lines."""
    lines = []
    for workers in WORKERS:
        ours, flat = (result.get(f"{way} {workers} {clock}") for way in ("mds", "flat"))
        for peer, bar in PEER_BARS.items():
            theirs = result.get(f"{peer} {workers} {clock}")
            if ours and theirs and ours < bar * theirs:
                lines.append(f"MDS, {workers} workers: {ours / theirs:.2f} of {peer}, bar {bar}")
        # By CPU time a rate is a core's already; by the wall it is that of all workers.
        cores = max(1, workers) if clock == "wall" else 1
        if flat and flat < FLAT_BAR * cores:
            lines.append(f"flat, {workers} workers: {flat:.1f} Mtok/s, bar {FLAT_BAR} a core")
        for name, bar in (("first batch", FIRST_BATCH_BAR), ("share", SHARE_BAR)):
            if result.get(f"{name} {workers}", 0) > bar:
                lines.append(f"{name}, {workers} workers: {result[f'{name} {workers}']}, bar {bar}")
    if result.get("over", PREPARE_BAR) < PREPARE_BAR:
        lines.append(f"prepare: {result['over']:.2f} of upstream's way, bar {PREPARE_BAR}")
    return lines


SECTIONS: dict[str, Callable[[argparse.Namespace, Path], dict[str, float]]] = {
    "read": read, "index": index, "step": step, "prepare": prepare,
}  # fmt: skip


def main() -> int:
    """Prints all figures; returns 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="to read rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20_000, help="rows to read")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=2048, help="tokens of a step's row")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--text", type=Path, default=ROOT / "data" / "methods" / "text" / "train")
    parser.add_argument("--copies", type=int, default=32, help="of the text, as of a large corpus")
    parser.add_argument("--tokenizer", default=str(ROOT / "data" / "smollm2"))
    parser.add_argument("--peers", default="/tmp/peers", help="folder that peers are installed in")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="of the bars")
    parser.add_argument("--json", type=Path, default=None, help="write the results here too")
    arguments = parser.parse_args()
    makers = {"text": "benchmarks/methods/prepare.py", "tokenizer": "scripts/misc/fetch_smollm2.py"}
    for option, script in makers.items():
        place = getattr(arguments, option)
        if not Path(place).exists():
            parser.error(f"there is no {place}: run `python {script}`, or give another --{option}")
    result: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for section in arguments.only:
            result |= SECTIONS[section](arguments, Path(folder))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result) + "\n", encoding="utf-8")
    faults = missed(result, arguments.clock)
    for line in faults:
        print(f"missed: {line}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
