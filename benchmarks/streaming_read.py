"""Measures how fast tokens come from MDS shards on the local disk, alone and through a DataLoader.

    python benchmarks/streaming_read.py [--rows 20000] [--json FILE]

Rows are 2,049 tokens, as for a context of 2,048, shuffled. Each figure is the best of some passes
over shards that the disk cache holds: it is the reader's cost, not the disk's.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from streaming import LocalDataset, MDSWriter, StreamingDataLoader, StreamingDataset

TOKENS_PER_ROW = 2049
BATCH_SIZE = 8


class Tokens(StreamingDataset):
    """What a text dataset does to a row: token ids as an int64 tensor."""

    def __getitem__(self, at: Any) -> torch.Tensor:
        """The tokens of a row."""
        return torch.from_numpy(super().__getitem__(at)["tokens"].astype(np.int64))


def main() -> None:
    """Prints tokens and megabytes a second for each way of reading."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None, help="write the results here too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        write(folder, arguments.rows)
        for name, make in ways(folder).items():
            seconds = min(timed(make) for _ in range(arguments.passes))
            tokens = arguments.rows * TOKENS_PER_ROW
            results[name] = tokens / seconds
            print(
                f"{name:45s} {tokens / seconds / 1e6:8.1f} Mtok/s "
                f"{tokens * 4 / seconds / 1e6:8.0f} MB/s {seconds / arguments.rows * 1e6:7.2f} us "
                "a row"
            )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results) + "\n", encoding="utf-8")


def write(folder: str, rows: int) -> None:
    """Writes rows of random tokens, and says how fast that went."""
    tokens = np.random.default_rng(0).integers(0, 50_000, (64, TOKENS_PER_ROW), np.int32)
    start = time.perf_counter()
    with MDSWriter(columns={"tokens": "ndarray:int32"}, out=folder) as writer:
        for row in range(rows):
            writer.write({"tokens": tokens[row % 64]})
    seconds = time.perf_counter() - start
    print(f"{'written':45s} {rows * TOKENS_PER_ROW / seconds / 1e6:8.1f} Mtok/s")


def ways(folder: str) -> dict[str, Callable[[], Iterable[Any]]]:
    """The ways of reading, by name."""

    def dataset(kind: type[StreamingDataset]) -> StreamingDataset:
        return kind(local=folder, batch_size=BATCH_SIZE, shuffle=True)

    def loader(num_workers: int) -> StreamingDataLoader:
        return StreamingDataLoader(
            dataset(Tokens),
            batch_size=BATCH_SIZE,
            num_workers=num_workers,
            prefetch_factor=None if num_workers == 0 else 8,
        )

    local = LocalDataset(folder)
    order = np.random.default_rng(1).permutation(len(local)).tolist()
    return {
        "LocalDataset, random access": lambda: (local[row] for row in order),
        "StreamingDataset, iterated": lambda: dataset(StreamingDataset),
        "StreamingDataset of int64 tensors, iterated": lambda: dataset(Tokens),
        "StreamingDataLoader, 0 workers": lambda: loader(0),
        "StreamingDataLoader, 2 workers": lambda: loader(2),
    }


def timed(make: Callable[[], Iterable[Any]]) -> float:
    """Seconds of one pass."""
    start = time.perf_counter()
    for _ in make():
        pass
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
