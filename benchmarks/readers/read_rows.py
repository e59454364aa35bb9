"""Reads every row of a folder with one library, and prints how long that took, as JSON.

`benchmarks/data.py` runs it, a process a library: mosaicml-streaming's package has the name of
ours, and whichever comes first on the path is read by the same lines. That is also why a library is
imported only where it is used.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

TOKENS_PER_ROW = 2049
SECONDS = 1.0


def mds(arguments: argparse.Namespace, **options: Any) -> Any:
    """Returns a loader of MDS shards, as int64 rows."""
    import streaming

    class Rows(streaming.StreamingDataset):
        def __getitem__(self, at: Any) -> torch.Tensor:
            return torch.from_numpy(super().__getitem__(at)["tokens"].astype(np.int64))

    size = arguments.batch_size
    dataset = Rows(**{"local": arguments.folder, **options}, batch_size=size, shuffle=True)
    return streaming.StreamingDataLoader(dataset, batch_size=size, **workers_of(arguments))


def flat(arguments: argparse.Namespace) -> Any:
    """Returns what `mds` does, of a flat file of the tokens alone."""
    return mds(
        arguments, local=f"{arguments.folder}-flat", token_encoding_type="uint16",
        max_seq_len=TOKENS_PER_ROW,
    )  # fmt: skip


def mosaicml(arguments: argparse.Namespace) -> Any:
    """Returns what `mds` does, of mosaicml-streaming, which cannot do without a torchvision."""
    names = ("", ".datasets", ".transforms", ".transforms.functional")
    for name in (f"torchvision{each}" for each in names):
        stub = sys.modules[name] = types.ModuleType(name)
        stub.__spec__, stub.__path__ = ModuleSpec(name, None), []
        vars(stub).update(to_tensor=None, VisionDataset=object)
    import streaming

    if hasattr(streaming.StreamingDataset, "own_samples"):
        raise ModuleNotFoundError("streaming is ours: mosaicml-streaming is not installed there")
    return mds(arguments)


def litdata(arguments: argparse.Namespace) -> Any:
    """Returns a loader of litdata's own format, which is written from the MDS rows if need be."""
    from litdata import (  # pyright: ignore[reportMissingImports]  # a peer, if it is there
        StreamingDataLoader,
        StreamingDataset,
        TokensLoader,
        optimize,
    )

    folder = f"{arguments.folder}-litdata"
    if not os.path.isdir(folder):
        optimize(
            fn=first_tokens, inputs=list(range(arguments.rows)), output_dir=folder,
            chunk_size=TOKENS_PER_ROW * 8192, num_workers=1, item_loader=TokensLoader(),
        )  # fmt: skip
    dataset = StreamingDataset(
        folder, item_loader=TokensLoader(block_size=TOKENS_PER_ROW), shuffle=True
    )
    size = arguments.batch_size
    return StreamingDataLoader(dataset, batch_size=size, **workers_of(arguments))


def first_tokens(row: int) -> Any:
    """The tokens of a row."""
    return torch.from_numpy(made_row(row))


def text(arguments: argparse.Namespace) -> Any:
    """Returns the whole `text` loader, collator included, as a recipe builds it."""
    from transformers import AutoTokenizer

    from llmfoundry.builders import build_dataloader

    config = {
        "name": "text", "drop_last": True, "num_workers": arguments.workers,
        "dataset": {"local": arguments.folder, "max_seq_len": TOKENS_PER_ROW, "shuffle": True},
    }  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    return build_dataloader(config, tokenizer, arguments.batch_size).dataloader


def memmap(arguments: argparse.Namespace) -> Any:
    """Returns what one would write without a library: a memory-mapped file, a batch at once."""

    class Rows(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            tokens = np.memmap(f"{arguments.folder}-flat/tokens.bin", np.uint16, "r")
            self.rows = tokens.reshape(-1, TOKENS_PER_ROW)

        def __len__(self) -> int:
            return len(self.rows)

        def __getitems__(self, at: list[int]) -> torch.Tensor:
            return torch.from_numpy(self.rows[at].astype(np.int64))

    return DataLoader(
        Rows(), batch_size=arguments.batch_size, shuffle=True, collate_fn=same,
        **workers_of(arguments),
    )  # fmt: skip


def same(batch: Any) -> Any:
    """The batch as it is."""
    return batch


def made_row(row: int) -> Any:
    """The tokens of a row: any, and the same for everybody."""
    rng = np.random.default_rng(row % 64)
    return rng.integers(0, 50_000, TOKENS_PER_ROW, np.int32)


def workers_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the loader's settings of worker processes."""
    if not arguments.workers:
        return {"num_workers": 0}
    return {"num_workers": arguments.workers, "persistent_workers": True, "prefetch_factor": 4}


def cpu_seconds() -> float:
    """Returns the processor time of this process and its living children."""
    ticks = 0
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def timed(loader: Any) -> dict[str, float]:
    """Returns rows and seconds of some epochs, a second's worth; the one before fills caches."""
    for _ in loader:
        pass
    rows, start, cpu = 0, time.perf_counter(), cpu_seconds()
    while time.perf_counter() - start < SECONDS:
        for batch in loader:
            rows += len(batch["input_ids"] if isinstance(batch, dict) else batch)
    wall, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    return {"tokens": rows * TOKENS_PER_ROW, "wall": wall, "cpu": cpu}


WAYS: dict[str, Callable[[argparse.Namespace], Any]] = {
    way.__name__: way for way in (mds, flat, text, memmap, mosaicml, litdata)
}


def main() -> None:
    """Prints a line of JSON: the figures, or which module is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--tokenizer", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        loader = WAYS[arguments.way](arguments)
    except ModuleNotFoundError as error:
        print(json.dumps({"missing": str(error)}))
        return
    print(json.dumps(timed(loader)))


if __name__ == "__main__":
    main()
