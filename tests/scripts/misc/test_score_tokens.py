from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from streaming import MDSWriter
from tests.scripts.loading import load_script

script = load_script("scripts/misc/score_tokens.py")
SIZE = 7


def rows(seed: int, count: int) -> np.ndarray:
    made = np.random.default_rng(seed).integers(0, SIZE, (count, 12))
    made[0, 0] = SIZE - 1  # so that the vocabulary is known
    return made


def brute_force(train: np.ndarray, val: np.ndarray, k: float) -> float:
    pairs = Counter((a, b) for row in train.tolist() for a, b in zip(row, row[1:], strict=False))
    first = Counter(a for row in train.tolist() for a in row[:-1])
    losses = [
        -np.log((pairs[a, b] + k) / (first[a] + k * SIZE))
        for row in val.tolist()
        for a, b in zip(row, row[1:], strict=False)
    ]
    return float(np.mean(losses))


def test_bigrams_are_those_of_the_rows() -> None:
    train, val = rows(1, 40), rows(2, 9)
    expected = min(brute_force(train, val, k) for k in script.ADD_K)
    assert script.ngram_losses(train, val)["bigram, add-k"] == pytest.approx(expected, rel=1e-12)


def test_a_pattern_that_bigrams_know_costs_nothing() -> None:
    train = np.tile(np.arange(SIZE), (50, 2))
    losses = script.ngram_losses(train, train[:3])
    assert losses["bigram, add-k"] < 0.01
    assert losses["unigram"] == pytest.approx(np.log(SIZE), abs=0.05)


def test_rows_come_back_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    written = rows(3, 30)
    folder = str(tmp_path / "val")
    with MDSWriter(out=folder, columns={"tokens": "ndarray:int32"}, size_limit=400) as out:
        for row in written:
            out.write({"tokens": row.astype(np.int32)})
    assert np.array_equal(script.read_rows(str(tmp_path), "val"), written)
