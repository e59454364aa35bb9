"""Packing of batches by LLM Foundry's greedy rule, and the measure of what it would waste.

For rows that are packed anew see ``packed_dataset``: there nothing is left over.
"""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch

from composer.devices.factory import get_device
from composer.utils import dist
from composer.utils.reproducibility import seed_context
from llmfoundry.builders.dataloaders import build_dataloader
from llmfoundry.utils.consts import CROSS_ENTROPY_IGNORE_INDEX

__all__ = ["BinPackCollator", "auto_packing_ratio", "profile_packing"]

Example = dict[str, torch.Tensor]
Bin = tuple[int, Example]
"""Tokens of a row in the making, and the row."""

PADDING = {"labels": CROSS_ENTROPY_IGNORE_INDEX, "attention_mask": 0, "sequence_id": -1}
TOKENS_PER_RATIO = 100
"""Rows that are not longer cannot be packed ``auto``-matically; the ratio of longer ones is at most
their length over it."""
ROWS_PER_RATIO = 100
"""Batches that a ratio is profiled on."""


def _as_they_are(batch: dict[str, Any]) -> dict[str, Any]:
    return batch


class BinPackCollator:
    """Packs the rows of a batch into fewer ones: greedily, and keeps what is left for later.

    What is left over at the end of an epoch, or when a run stops, is lost, and each loader worker
    has its own. ``packing: best_fit`` has neither fault.

    Args:
        collator: Makes a padded batch of examples.
        target_batch_size: Rows of a packed batch.
        max_seq_len: Tokens of a packed row.
        pad_token_id: Pads rows.
        padding_side: ``left`` or ``right``.
        max_leftover_bins_to_keep: Rows that are kept for the next batch; None keeps all.
        is_profiling: Counts only, and returns an empty batch.
    """

    def __init__(
        self,
        collator: Callable[[Any], dict[str, Any]],
        target_batch_size: int,
        max_seq_len: int,
        pad_token_id: int,
        padding_side: Literal["left", "right"],
        max_leftover_bins_to_keep: int | None = None,
        is_profiling: bool = False,
    ) -> None:
        least = {"target_batch_size": (target_batch_size, 1), "max_seq_len": (max_seq_len, 1)}
        least["pad_token_id"] = (pad_token_id, 0)
        least["max_leftover_bins_to_keep"] = (max_leftover_bins_to_keep or 0, 0)
        for name, (value, bound) in least.items():
            if value < bound:
                raise ValueError(f"{name}={value} must be at least {bound}.")
        if padding_side not in ("left", "right"):
            raise ValueError(f"padding_side={padding_side!r} must be left or right.")
        self.base_collator = collator
        self.out_size = target_batch_size
        self.max_seq_len = max_seq_len
        self.pad_token_id = pad_token_id
        self.padding_side = padding_side
        self.max_leftover_bins_to_keep = max_leftover_bins_to_keep
        self.is_profiling = is_profiling
        self.n_packed_tokens = 0
        self.n_total_tokens = 0
        self.n_packed_examples = 0
        self._leftover_bins: list[Bin] = []

    @property
    def waste(self) -> float:
        """Share of all tokens so far that have not come out."""
        return 1 - self.n_packed_tokens / max(1, self.n_total_tokens)

    @property
    def efficiency(self) -> float:
        """Share of all packed rows so far that is not padding."""
        return self.n_packed_tokens / max(1, self.max_seq_len * self.n_packed_examples)

    def __call__(self, examples: Any) -> dict[str, torch.Tensor]:
        """Makes a packed batch."""
        return self.pack(self.base_collator(examples))

    def pack(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Packs the rows of a batch; there may be fewer than asked for if it has fewer."""
        unknown = sorted(set(batch) - {"input_ids", "labels", "attention_mask", "sequence_id"})
        assert not unknown, f"A batch with {unknown} cannot be packed."
        examples = [_trimmed(batch, row) for row in range(len(batch["attention_mask"]))]
        sizes = [len(example["input_ids"]) for example in examples]
        bins = _first_fit(self._leftover_bins, sizes, examples, self.out_size, self.max_seq_len)
        before = sum(size for size, _ in self._leftover_bins) + sum(sizes)
        assert sum(size for size, _ in bins) == before, "Packing has lost tokens."
        packed, left = bins[: self.out_size], bins[self.out_size :]
        self._leftover_bins = left[: self.max_leftover_bins_to_keep]
        self.n_packed_tokens += sum(size for size, _ in packed)
        self.n_total_tokens += sum(sizes)
        self.n_packed_examples += self.out_size
        return {} if self.is_profiling else self._padded([example for _, example in packed])

    def _padded(self, examples: list[Example]) -> dict[str, torch.Tensor]:
        padding = {**PADDING, "input_ids": self.pad_token_id}
        batch = {}
        for key in examples[0]:
            rows = torch.full((len(examples), self.max_seq_len), padding[key], dtype=torch.int64)
            for row, example in zip(rows, examples, strict=True):
                values = example[key]
                if len(values) and self.padding_side == "right":
                    row[: len(values)] = values
                elif len(values):
                    row[-len(values) :] = values
            batch[key] = rows
        return batch


def _trimmed(batch: Mapping[str, torch.Tensor], row: int) -> Example:
    """A row of a batch without its padding."""
    is_token = batch["attention_mask"][row] == 1
    example = {key: value[row][is_token] for key, value in batch.items()}
    return {**example, "sequence_id": torch.zeros_like(example["input_ids"])}


def _first_fit(
    leftover: list[Bin], sizes: list[int], examples: list[Example], num_bins: int, capacity: int
) -> list[Bin]:
    """Adds examples to bins, the longest first; the fullest bins come first.

    A bin that was added to goes to the end of the list, and examples are kept back for as many bins
    as are wanted: so LLM Foundry does, and both decide what a batch holds.
    """
    bins = list(leftover)
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    for place, number in enumerate(order):
        size, example = sizes[number], examples[number]
        wanted, remaining = max(0, num_bins - len(bins)), len(order) - place
        fitting = (at for at, (taken, _) in enumerate(bins) if taken + size <= capacity)
        at = None if remaining <= wanted else next(fitting, None)
        if at is None:
            bins.append((size, example))
        else:
            taken, first = bins.pop(at)
            bins.append((taken + size, _combined(first, example)))
    return sorted(bins, key=lambda each: each[0], reverse=True)


def _combined(example: Example, add_on: Example) -> Example:
    """Two examples in one row. What the second begins with follows from nothing in it."""
    add_on = dict(add_on)
    if "labels" in add_on:
        add_on["labels"] = add_on["labels"].clone()
        add_on["labels"][:1] = CROSS_ENTROPY_IGNORE_INDEX
    add_on["sequence_id"] = add_on["sequence_id"] + 1 + example["sequence_id"].max()
    return {key: torch.cat([example[key], add_on[key]]) for key in example}


def auto_packing_ratio(
    dataloader_cfg: dict[str, Any],
    tokenizer: Any,
    device_batch_size: int,
    num_packing_ratios: int = 20,
    max_ratio: float | None = None,
    packing_collator_cls: type[BinPackCollator] = BinPackCollator,
    inner_collator: Callable[[dict[str, Any]], dict[str, Any]] = _as_they_are,
) -> float:
    """Finds the highest packing ratio at which nothing is wasted, the same on every rank.

    Args:
        dataloader_cfg: The loader's settings, with its ``name`` and ``dataset.max_seq_len``.
        tokenizer: The loader's tokenizer.
        device_batch_size: Packed rows of a batch on this device.
        num_packing_ratios: Ratios to try.
        max_ratio: Highest one to try; by default one for each hundred tokens of a row.
        packing_collator_cls: Packs.
        inner_collator: What is done with a batch before it is packed.

    Raises:
        ValueError: ``max_ratio`` is not above 1.
    """
    max_seq_len = dataloader_cfg["dataset"]["max_seq_len"]
    if max_seq_len <= TOKENS_PER_RATIO:
        return 1
    highest: float = max_seq_len / TOKENS_PER_RATIO if max_ratio is None else max_ratio
    if highest <= 1:
        raise ValueError(f"max_ratio={max_ratio} must be above 1, which is no packing.")
    best = 1.0
    with seed_context(0):
        profiles = profile_packing(
            dataloader_cfg,
            tokenizer,
            1,
            highest,
            num_packing_ratios,
            device_batch_size,
            packing_collator_cls,
            inner_collator,
        )
        for ratio, _, waste in profiles:
            if waste is None or waste > 0:
                break
            best = ratio
    if dist.get_world_size() == 1:
        return best
    found = get_device().tensor_to_device(torch.tensor(best))
    dist.all_reduce(found, "MIN")
    return round(found.item(), 1)  # The device may have halved the number's digits.


def profile_packing(
    dataloader_cfg: dict[str, Any],
    tokenizer: Any,
    min_ratio: float,
    max_ratio: float,
    num_packing_ratios: int,
    device_batch_size: int,
    packing_collator_cls: type[BinPackCollator] = BinPackCollator,
    inner_collator: Callable[[dict[str, Any]], dict[str, Any]] = _as_they_are,
) -> Iterator[tuple[float, float | None, float | None]]:
    """Yields packing ratios, and the percentages of padding and of waste that each gives.

    Both are None where there are too few rows to know.

    Args:
        dataloader_cfg: The loader's settings, with its ``name``.
        tokenizer: The loader's tokenizer.
        min_ratio: Lowest ratio.
        max_ratio: Highest ratio.
        num_packing_ratios: Ratios to try.
        device_batch_size: Packed rows of a batch on this device.
        packing_collator_cls: Packs.
        inner_collator: What is done with a batch before it is packed.
    """
    ratios = np.round(np.linspace(min_ratio, max_ratio, num_packing_ratios), 1).tolist()
    by_batch = {int(ratio * device_batch_size): ratio for ratio in reversed(ratios)}
    batches = sorted((size, ratio) for size, ratio in by_batch.items())
    dataset = dataloader_cfg["dataset"]
    with tempfile.TemporaryDirectory() as folder:
        cfg = _profiled(dataloader_cfg, folder)
        loader = build_dataloader(cfg, tokenizer, max(by_batch) * ROWS_PER_RATIO).dataloader
        whole: dict[str, Any] = next(iter(loader), {})
    rows = {key: whole[key] for key in ("input_ids", "labels", "attention_mask") if key in whole}
    for size, ratio in batches:
        packer = packing_collator_cls(
            collator=inner_collator,
            target_batch_size=device_batch_size,
            max_seq_len=dataset["max_seq_len"],
            pad_token_id=0,
            padding_side="left",
            max_leftover_bins_to_keep=dataset.get("max_leftover_bins_to_keep"),
            is_profiling=True,
        )
        for first in range(0, len(rows.get("input_ids", ())), size):
            part = {key: value[first : first + size] for key, value in rows.items()}
            if len(part["input_ids"]) >= device_batch_size:
                packer(part)
        if packer.n_packed_examples:
            yield ratio, 100 * (1 - packer.efficiency), 100 * packer.waste
        else:
            yield ratio, None, None


def _profiled(dataloader_cfg: dict[str, Any], folder: str) -> dict[str, Any]:
    """Settings of a loader that gives as many rows as are there, not packed, in one batch."""
    cfg = copy.deepcopy(dict(dataloader_cfg))
    cfg |= {"drop_last": False, "num_workers": 0}
    cfg |= {"prefetch_factor": None, "persistent_workers": False}
    dataset = cfg["dataset"]
    dataset |= {"packing_ratio": 1.0, "pad_to_longest": True, "seq_parallel_replication": 1}
    for key in ("max_leftover_bins_to_keep", "packing"):  # They do not go with no packing.
        dataset.pop(key, None)
    if dataset.get("remote") and not dataset.get("local"):
        dataset["local"] = folder
    return cfg
