"""Counting all rows of a batch at once gives what counting them one by one gives."""

import pickle
from typing import Any

import pytest
import torch

from llmfoundry.data.token_counts import (
    LossGeneratingTokensCollatorWrapper,
    get_tokens_per_batch_func,
)


def batch_of(*names: str) -> dict[str, torch.Tensor]:
    ids = torch.arange(12).view(3, 4)
    every = {
        "input_ids": ids,
        "labels": ids.masked_fill(ids % 3 == 0, -100),
        "attention_mask": (ids % 4 < 3).long(),
        "decoder_attention_mask": ids % 5 < 2,
    }
    return {name: every[name] for name in names}


@pytest.mark.parametrize(
    ("names", "decoder_only", "totals", "targets"),
    [
        (("input_ids",), True, [4, 4, 4], [4, 4, 4]),
        (("input_ids", "labels"), True, [4, 4, 4], [2, 2, 2]),
        (("input_ids", "labels", "attention_mask"), True, [3, 3, 3], [2, 2, 2]),
        (
            ("input_ids", "labels", "attention_mask", "decoder_attention_mask"),
            False,
            [5, 5, 5],
            [2, 3, 3],
        ),
    ],
)
def test_rows_are_counted_at_once(
    names: tuple[str, ...], decoder_only: bool, totals: list[int], targets: list[int]
) -> None:
    count = pickle.loads(pickle.dumps(get_tokens_per_batch_func(decoder_only)))

    def collate(examples: list[Any]) -> dict[str, Any]:
        return batch_of(*names)

    at_once = LossGeneratingTokensCollatorWrapper(collate, count)([])
    one_by_one = LossGeneratingTokensCollatorWrapper(collate, lambda batch: count(batch))([])
    for found in (at_once, one_by_one):
        assert found["total_tokens"] == totals
        assert found["loss_generating_tokens"] == targets
    assert count(at_once) == {"total": sum(totals), "loss_generating": sum(targets)}
