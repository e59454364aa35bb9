"""The greedy packer against what LLM Foundry packed, and the ratios that are found for it."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from composer.core.data_spec import DataSpec
from composer.utils import dist
from llmfoundry import registry
from llmfoundry.data import BinPackCollator, auto_packing_ratio, profile_packing
from tests.launch import run_ranks

GOLDEN = Path(__file__).parents[2] / "golden" / "finetuning" / "batches.json"
CASES = {case["name"]: case for case in json.loads(GOLDEN.read_text())}
UNPACKED = {
    "pr_pack3.0": "pr_none_last",
    "pr_pack1.5": "pr_none_last",
    "pr_pack3_leftovers0": "pr_none_last",
    "chat_pack2_all": "chat_all_all",
}
"""Packed batches, and the batches of the same rows as they are."""
PAD = 50256


def collate(rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """A batch that is padded on the right."""
    width = max(len(row["input_ids"]) for row in rows)
    batch = {
        key: torch.tensor([row[key] + [pad] * (width - len(row[key])) for row in rows])
        for key, pad in (("input_ids", PAD), ("labels", -100))
    }
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])[:, None]
    return {**batch, "attention_mask": (torch.arange(width) < lengths).long()}


def rows_of(lengths: list[int]) -> list[dict[str, list[int]]]:
    return [{"input_ids": [n] * n, "labels": [n] * n} for n in lengths]


def packer(**changes: Any) -> BinPackCollator:
    arguments: dict[str, Any] = {"target_batch_size": 2, "max_seq_len": 5, "pad_token_id": 0}
    return BinPackCollator(collate, **{**arguments, "padding_side": "right", **changes})


def test_the_vectors_of_upstream() -> None:
    assert packer()(rows_of([1, 2, 4, 3]))["input_ids"].tolist() == [
        [3, 3, 3, 2, 2],
        [4, 4, 4, 4, 1],
    ]
    pack = packer()
    batch = pack(rows_of([1, 2, 4, 4]))
    assert batch["input_ids"].tolist() == [[4, 4, 4, 4, 1], [4, 4, 4, 4, 0]]
    assert batch["labels"].tolist() == [[4, 4, 4, 4, -100], [4, 4, 4, 4, -100]]
    assert batch["sequence_id"].tolist() == [[0, 0, 0, 0, 1], [0, 0, 0, 0, -1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert pack.waste == pytest.approx(2 / 11) and pack.efficiency == pytest.approx(9 / 10)
    assert pack(rows_of([1]))["input_ids"].tolist() == [[2, 2, 0, 0, 0], [1, 0, 0, 0, 0]]
    # What was added to is looked at last.
    sizes = packer(max_seq_len=10)(rows_of([6, 5, 1, 1]))["attention_mask"].sum(1)
    assert sizes.tolist() == [7, 6]
    left = packer(padding_side="left")(rows_of([2, 3, 1]))
    assert left["input_ids"].tolist() == [[3, 3, 3, 2, 2], [0, 0, 0, 0, 1]]


@pytest.mark.parametrize("name", UNPACKED)
def test_batches_are_those_of_upstream(name: str) -> None:
    case = CASES[name]
    rows: list[dict[str, list[int]]] = []
    for recorded in CASES[UNPACKED[name]]["batches"]:
        for ids, labels, mask in zip(
            *(recorded["batch"][key] for key in ("input_ids", "labels", "attention_mask")),
            strict=True,
        ):
            rows.append({"input_ids": ids[: sum(mask)], "labels": labels[: sum(mask)]})
    settings = case["dataset_cfg"]
    size = int(case["device_batch_size"] * settings["packing_ratio"])
    pack = packer(
        target_batch_size=case["device_batch_size"],
        max_seq_len=settings["max_seq_len"],
        max_leftover_bins_to_keep=settings.get("max_leftover_bins_to_keep"),
        pad_token_id=PAD,
    )
    batches = [pack(rows[first : first + size]) for first in range(0, len(rows), size)]
    assert len(batches) == len(case["batches"])
    for batch, recorded in zip(batches, case["batches"], strict=True):
        for key, values in batch.items():
            assert values.tolist() == recorded["batch"][key]
    assert pack.waste == pytest.approx(case["pack_stats"]["waste"])
    assert pack.efficiency == pytest.approx(case["pack_stats"]["efficiency"])


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 8), min_size=1, max_size=12), max_size=5))
def test_nothing_is_lost_but_the_leftover(batches: list[list[int]]) -> None:
    pack, went_in, came_out = packer(max_seq_len=8, target_batch_size=3), [], []
    for lengths in batches:
        went_in += lengths
        batch = pack(rows_of(lengths))
        for row, ids in zip(batch["input_ids"], batch["sequence_id"], strict=True):
            came_out += [int(row[ids == each][0]) for each in range(int(ids.max()) + 1)]
            assert all(len(set(row[ids == each].tolist())) == 1 for each in set(ids.tolist()))
    left = [example["input_ids"] for _, example in pack._leftover_bins]
    for ids, (_, example) in zip(left, pack._leftover_bins, strict=True):
        numbers = example["sequence_id"]
        came_out += [int(ids[numbers == each][0]) for each in range(int(numbers.max()) + 1)]
    assert sorted(came_out) == sorted(went_in)


def test_b77_and_b79_targets_are_those_of_the_rows() -> None:
    lengths = [3, 2, 4]
    batch = packer(target_batch_size=1, max_seq_len=9)(rows_of(lengths))
    assert batch["labels"].tolist() == [[4, 4, 4, 4, -100, 3, 3, -100, 2]]
    assert int((batch["labels"][:, 1:] != -100).sum()) == sum(n - 1 for n in lengths)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("target_batch_size", 0), ("max_seq_len", 0), ("pad_token_id", -1)]
    + [("max_leftover_bins_to_keep", -1), ("padding_side", "up")],
)
def test_what_is_refused(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{setting}="):
        packer(**{setting: value})
    with pytest.raises(AssertionError, match="total_tokens"):
        packer().pack({"total_tokens": torch.ones(1), "attention_mask": torch.ones(1, 1)})


def build_rows(
    tokenizer: Any,
    device_batch_size: int,
    dataset: dict[str, Any],
    drop_last: bool,
    num_workers: int,
    prefetch_factor: int | None,
    persistent_workers: bool,
) -> DataSpec:
    """A loader that is asked as a fine-tuning loader is."""
    assert not drop_last and num_workers == 0 and prefetch_factor is None
    assert not persistent_workers and dataset["packing_ratio"] == 1.0 and dataset["pad_to_longest"]
    low, high = dataset["range"]
    lengths = np.random.default_rng(dist.get_global_rank()).integers(low, high, 400)
    rows: Any = rows_of(lengths.tolist())
    sampler = dist.get_sampler(rows)
    return DataSpec(DataLoader(rows, device_batch_size, sampler=sampler, collate_fn=collate))


@pytest.fixture(autouse=True)
def rows_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.dataloaders._table, "rows_for_packing", build_rows)


def config(low: int, high: int, max_seq_len: int = 1000) -> dict[str, Any]:
    dataset = {"max_seq_len": max_seq_len, "range": (low, high)}
    return {"name": "rows_for_packing", "dataset": dataset, "drop_last": True, "num_workers": 4}


def test_profiles_are_what_packing_gives() -> None:
    cfg = config(50, 150)
    profiles = list(profile_packing(cfg, None, 1, 12, 12, 4))
    assert cfg == config(50, 150)
    assert [ratio for ratio, _, _ in profiles] == [float(n) for n in range(1, 13)]
    padding, waste = zip(*(rest for _, *rest in profiles), strict=True)
    assert padding[0] > 85 and waste[0] == 0  # one row of a hundred tokens to a row of a thousand
    assert padding[-1] < 5 and waste[-1] > 0
    ((ratio, first, waste),) = profile_packing(cfg, None, 1, 1.2, 3, 2)
    assert ratio == 1 and first == pytest.approx(padding[0], abs=5) and waste == 0
    few = list(profile_packing(config(50, 150), None, 1, 2, 2, 500))
    assert few == [(1, None, None), (2, None, None)]


def test_the_ratio_that_wastes_nothing() -> None:
    state = random.getstate()
    ratio = auto_packing_ratio(config(50, 150), None, 4)
    assert random.getstate() == state
    assert 4 < ratio < 10
    by_ratio = {r: waste for r, _, waste in profile_packing(config(50, 150), None, 1, 10, 20, 4)}
    assert by_ratio[ratio] == 0 and by_ratio[min(r for r in by_ratio if r > ratio)] > 0
    assert auto_packing_ratio(config(50, 100, max_seq_len=100), None, 4) == 1
    assert auto_packing_ratio(config(50, 150), None, 4, max_ratio=1.5) <= 1.5
    with pytest.raises(ValueError, match="max_ratio=1"):
        auto_packing_ratio(config(50, 150), None, 4, max_ratio=1)


def _ratio_of_rank() -> float:
    registry.dataloaders.register("rows_for_packing", func=build_rows)
    high = 150 if dist.get_global_rank() == 0 else 400
    return auto_packing_ratio(config(50, high), None, 4)


def test_all_ranks_take_the_lowest_ratio() -> None:
    found = run_ranks(_ratio_of_rank, 2)
    alone = auto_packing_ratio(config(50, 150), None, 4)
    assert found[0] == found[1] == round(found[0], 1) < alone
