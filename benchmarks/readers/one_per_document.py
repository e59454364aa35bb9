"""Prepares token rows as upstream's commands do: a call of the tokenizer for each document.

What `benchmarks/data.py` holds `convert_dataset_json` against. Two loader workers stream JSON files
by `datasets`, tokenise and cut rows; the main process writes them.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from datasets import load_dataset
from torch.utils.data import DataLoader, IterableDataset
from transformers import AutoTokenizer

from streaming import MDSWriter


class Rows(IterableDataset[dict[str, Any]]):
    """Rows of one length over documents that are joined."""

    def __init__(self, files: list[str], tokenizer: str, length: int) -> None:
        self.files, self.length = files, length
        self.tokenizer = AutoTokenizer.from_pretrained(tokenizer, model_max_length=int(1e30))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        documents = load_dataset("json", data_files=self.files, split="train", streaming=True)
        end = self.tokenizer(self.tokenizer.eos_token, add_special_tokens=False)["input_ids"]
        buffer: list[int] = []
        for document in documents:  # The library shares the files out over the workers.
            ids = self.tokenizer(document["text"], truncation=False, padding=False)["input_ids"]
            buffer += ids + end
            while len(buffer) >= self.length:
                yield {"tokens": np.asarray(buffer[: self.length], np.int32)}
                buffer = buffer[self.length :]


def main(folder: str, out: str, tokenizer: str, length: str) -> None:
    """Writes the rows of a folder of JSON files."""
    rows = Rows(sorted(map(str, Path(folder).iterdir())), tokenizer, int(length))
    with MDSWriter(columns={"tokens": "ndarray:int32"}, out=out) as writer:
        for batch in DataLoader(rows, batch_size=512, num_workers=2):
            for row in batch["tokens"]:
                writer.write({"tokens": row.numpy()})


if __name__ == "__main__":
    main(*sys.argv[1:])
