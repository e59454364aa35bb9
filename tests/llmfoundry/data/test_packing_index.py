"""The plan of packed rows: every token once, none too many, hardly any padding, kept in a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmfoundry.data.packing_index import Packing, PackingIndex, windows

CONTENT = bytes(range(16))
SHARDS = st.lists(st.lists(st.integers(0, 50), max_size=15), min_size=1, max_size=6)


def build(shards: list[list[int]], packing: Packing) -> PackingIndex:
    return PackingIndex.build([np.array(each, np.int64) for each in shards], packing, CONTENT)


@settings(deadline=None, max_examples=300)
@given(SHARDS, st.integers(1, 40), st.sampled_from(["split", "cut"]), st.integers(1, 40))
def test_every_token_is_in_one_row(
    shards: list[list[int]], capacity: int, long_rows: Any, window: int
) -> None:
    index = build(shards, Packing(capacity, 0, long_rows, window))
    sizes = [size for shard in shards for size in shard]
    seen = [np.zeros(size, int) for size in sizes]
    for row in range(index.report.rows):
        pieces = index.pieces(row)
        assert 0 < sum(length for *_, length in pieces) <= capacity
        for sample, start, length in pieces:
            assert length > 0 and start + length <= sizes[sample]
            seen[sample][start : start + length] += 1
    kept = [min(size, capacity) if long_rows == "cut" else size for size in sizes]
    for counts, keep in zip(seen, kept, strict=True):
        assert (counts[:keep] == 1).all() and not counts[keep:].any()
    report = index.report
    assert report.samples == len(sizes) and report.tokens == sum(sizes)
    assert report.tokens - report.tokens_cut == sum(kept) and report.empty == sizes.count(0)
    assert report.long == sum(size > capacity for size in sizes)
    assert index.rows_per_shard.sum() == report.rows
    assert index.lengths.tolist() == sizes
    # A row holds samples of its window only, and is counted to the window's first shard.
    ends, row = np.cumsum([len(shard) for shard in shards]), 0
    for group in windows([len(shard) for shard in shards], window):
        first, count = group[0], int(index.rows_per_shard[group[0]])
        assert not index.rows_per_shard[group[1:]].any()
        low, high = ends[first] - len(shards[first]), ends[group[-1]]
        for _ in range(count):
            samples = [sample for sample, *_ in index.pieces(row)]
            assert all(low <= sample < high for sample in samples)
            # Nor is a shard's beginning packed with its end.
            assert max(samples) - min(samples) < 2 * window
            row += 1


def test_a_piece_of_a_long_row_is_never_cut_again() -> None:
    index = build([[40, 5, 12]], Packing(16, 0, "split"))
    rows = [index.pieces(row) for row in range(index.report.rows)]
    assert sorted(piece for row in rows for piece in row) == [
        [0, 0, 16],
        [0, 16, 16],
        [0, 32, 8],
        [1, 0, 5],
        [2, 0, 12],
    ]
    assert str(index.report) == (
        "3 samples packed into 4 rows of 16 tokens, 10.94% padding; 1 longer than a row are split"
    )
    cut = build([[40, 0, 12]], Packing(16, 0, "cut")).report
    assert str(cut).endswith(
        "; 1 samples are empty and left out; 1 longer than a row are cut, by 24 tokens"
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("long_rows", ["split", "cut"])
def test_a_log_normal_mix_is_padded_by_less_than_a_hundredth(seed: int, long_rows: Any) -> None:
    lengths = np.random.default_rng(seed).lognormal(6.2, 1.2, 16_000).astype(int) + 1
    shards = np.split(lengths, np.cumsum([3000, 200, 5000, 800]))
    index = build([each.tolist() for each in shards], Packing(2048, 0, long_rows))
    assert index.report.padding <= 0.01


def test_a_file_is_read_back_or_made_anew(tmp_path: Path) -> None:
    packing = Packing(16, 0, "split")
    index, path = build([[40, 5], [12, 3]], packing), tmp_path / "index"
    assert PackingIndex.load(str(path), CONTENT) is None
    with path.open("wb") as out:
        index.save(out)
    again = PackingIndex.load(str(path), CONTENT)
    assert again is not None and again.report == index.report and again.digest == index.digest
    assert [again.pieces(row) for row in range(again.report.rows)] == [
        index.pieces(row) for row in range(index.report.rows)
    ]
    assert PackingIndex.load(str(path), CONTENT[::-1]) is None
    path.write_bytes(path.read_bytes()[:200])
    assert PackingIndex.load(str(path), CONTENT) is None


def test_the_digest_is_of_the_rows() -> None:
    digests = [
        build([[40, 5], [12, last]], packing).digest
        for last, packing in (
            (3, Packing(16, 0, "split")),
            (4, Packing(16, 0, "split")),
            (3, Packing(17, 0, "split")),
            (3, Packing(16, 0, "cut")),
        )
    ]
    assert len(set(digests)) == 4
    assert build([[40, 5], [12, 3]], Packing(16, 7, "split")).digest == digests[0]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("max_seq_len", 0), ("padding_id", -1), ("window", 0), ("long_rows", "drop")],
)
def test_what_is_refused(setting: str, value: Any) -> None:
    good: dict[str, Any] = {"max_seq_len": 8, "padding_id": 0, "long_rows": "cut"}
    with pytest.raises(ValueError, match=f"{setting}="):
        Packing(**{**good, setting: value})
