"""Scores a Hugging Face model on token shards, beside n-gram models of the same tokens.

    python scripts/misc/score_tokens.py -n quickstart/hf --local quickstart/tokens

The table shows loss (nats a token), perplexity and, if the text behind the shards is given, bits
per byte. The model is loaded by plain transformers, without code from its folder. The smoothing of
the bigram models is chosen on the scored tokens themselves, which flatters them.
"""

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from streaming import StreamingDataset

ADD_K = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
UNIGRAM_WEIGHTS = (3.0, 10.0, 30.0, 100.0, 300.0)


def main() -> None:
    """Reads the shards, scores every model on them and prints one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", "--name_or_path", required=True, help="folder of the model")
    parser.add_argument("--local", required=True, help="folder that holds the splits")
    parser.add_argument("--train_split", default="train", help="split that the bigrams count")
    parser.add_argument("--split", default="val", help="split to score")
    parser.add_argument("--text", default=None, help="text behind the split, for bits per byte")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--json", type=Path, default=None, help="write the results here too")
    arguments = parser.parse_args()
    train = read_rows(arguments.local, arguments.train_split)
    rows = read_rows(arguments.local, arguments.split)
    losses = ngram_losses(train, rows)
    losses["model"] = model_loss(arguments.name_or_path, rows, arguments.batch_size)
    density = bytes_per_token(arguments.name_or_path, arguments.text) if arguments.text else None
    show(losses, density, arguments.split, rows.size)
    if arguments.json is not None:
        result = {"losses": losses, "bytes_per_token": density, "tokens": int(rows.size)}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def read_rows(local: str, split: str) -> np.ndarray:
    """All samples of a split, one a row, in the order in which they were written."""
    dataset = StreamingDataset(local=local, split=split, shuffle=False, batch_size=1)
    return np.stack([dataset[index]["tokens"] for index in range(len(dataset))]).astype(np.int64)


def ngram_losses(train: np.ndarray, rows: np.ndarray) -> dict[str, float]:
    """Losses of a unigram and of two bigram models on every token that has one before it."""
    size = int(max(train.max(), rows.max())) + 1
    unigram = np.bincount(train.ravel(), minlength=size) + 1.0
    unigram /= unigram.sum()
    before, target = rows[:, :-1].ravel(), rows[:, 1:].ravel()
    pairs, counts = np.unique(
        train[:, :-1].ravel() * size + train[:, 1:].ravel(), return_counts=True
    )
    place = np.minimum(np.searchsorted(pairs, before * size + target), len(pairs) - 1)
    seen = np.where(pairs[place] == before * size + target, counts[place], 0)
    context = np.bincount(train[:, :-1].ravel(), minlength=size)[before]
    smoothed = [(seen + k) / (context + k * size) for k in ADD_K]
    mixed = [(seen + w * unigram[target]) / (context + w) for w in UNIGRAM_WEIGHTS]
    return {
        "unigram": -float(np.log(unigram[target]).mean()),
        "bigram, add-k": min(-float(np.log(p).mean()) for p in smoothed),
        "bigram, mixed with the unigram": min(-float(np.log(p).mean()) for p in mixed),
    }


def model_loss(path: str, rows: np.ndarray, batch_size: int) -> float:
    """Mean loss in fp32 of the model on the same targets as the bigrams."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    total = 0.0
    with torch.inference_mode():
        for batch in batches(rows, batch_size):
            tokens = torch.from_numpy(batch)
            logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].flatten(0, 1)
            targets = tokens[:, 1:].flatten()
            total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
    return total / (rows.shape[0] * (rows.shape[1] - 1))


def batches(rows: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """The rows in pieces of `batch_size`."""
    for start in range(0, len(rows), batch_size):
        yield rows[start : start + batch_size]


def bytes_per_token(path: str, text_folder: str) -> float:
    """Bytes of the text that one token stands for, the end-of-text token of each file counted."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    texts = [file.read_text("utf-8") for file in sorted(Path(text_folder).rglob("*.txt"))]
    tokens = sum(len(tokenizer(text, verbose=False)["input_ids"]) + 1 for text in texts)
    return sum(len(text.encode("utf-8")) for text in texts) / tokens


def show(losses: dict[str, float], density: float | None, split: str, tokens: int) -> None:
    """Prints the table, worst model first."""
    table = Table(title=f"Loss on the split {split!r} ({tokens:,} tokens)")
    for name in ("model", "loss", "perplexity", "bits per byte"):
        table.add_column(name, justify="left" if name == "model" else "right")
    for name, loss in sorted(losses.items(), key=lambda row: -row[1]):
        bits = "" if density is None else f"{loss / math.log(2) / density:.3f}"
        table.add_row(name, f"{loss:.4f}", f"{math.exp(loss):.2f}", bits)
    Console().print(table)


if __name__ == "__main__":
    main()
