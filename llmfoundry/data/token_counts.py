"""How many tokens a batch holds, and how many of them are targets."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from llmfoundry.utils.consts import CROSS_ENTROPY_IGNORE_INDEX

__all__ = ["LossGeneratingTokensCollatorWrapper", "get_tokens_per_batch_func"]

Batch = Mapping[str, Any]

COUNTED_KEYS = ("input_ids", "attention_mask", "labels", "decoder_attention_mask")


def get_tokens_per_batch_func(
    decoder_only: bool = True,
) -> Callable[[Batch], int | dict[str, int]]:
    """Gives a function that counts the tokens of a batch.

    The function returns ``{"total": ..., "loss_generating": ...}`` for a batch with labels, and the
    total alone for one without. A batch that carries the lists of
    :class:`LossGeneratingTokensCollatorWrapper` is not counted again.

    Args:
        decoder_only: False also counts the decoder's tokens of an encoder-decoder batch.
    """

    def get_num_tokens_in_batch(batch: Batch) -> int | dict[str, int]:
        if not isinstance(batch, Mapping) or not (
            "attention_mask" in batch or "input_ids" in batch
        ):
            raise ValueError(
                "Tokens can only be counted in a batch that is a mapping with input_ids or "
                f"attention_mask; got {_describe(batch)}."
            )
        if not decoder_only and "decoder_attention_mask" not in batch:
            raise ValueError(
                "An encoder-decoder batch needs a decoder_attention_mask to be counted; got "
                f"{_describe(batch)}."
            )
        if "total_tokens" in batch and "loss_generating_tokens" in batch:
            return {
                "total": int(sum(batch["total_tokens"])),
                "loss_generating": int(sum(batch["loss_generating_tokens"])),
            }
        return _count(batch, decoder_only)

    return get_num_tokens_in_batch


def _describe(batch: object) -> str:
    return f"keys {sorted(batch)}" if isinstance(batch, Mapping) else type(batch).__name__


def _count(batch: Batch, decoder_only: bool) -> int | dict[str, int]:
    if "attention_mask" in batch:
        total = int(torch.sum(batch["attention_mask"]))
    else:
        total = batch["input_ids"].numel()
    if not decoder_only:
        total += int(torch.sum(batch["decoder_attention_mask"]))
    if "labels" not in batch:
        return total
    # The first label of a row is never predicted; an encoder-decoder predicts them all.
    targets = batch["labels"][..., 1:] if decoder_only else batch["labels"]
    ignored = torch.count_nonzero(targets == CROSS_ENTROPY_IGNORE_INDEX)
    return {"total": total, "loss_generating": targets.numel() - int(ignored)}


class LossGeneratingTokensCollatorWrapper:
    """Counts tokens once, where the batch is made, and row by row so that splitting keeps it.

    Adds the lists ``total_tokens`` and ``loss_generating_tokens``, one number a row.

    Args:
        base_collator: Makes the batch.
        token_counting_func: Counts one row, as from :func:`get_tokens_per_batch_func`.
    """

    def __init__(
        self,
        base_collator: Callable[..., dict[str, Any]],
        token_counting_func: Callable[[Batch], int | dict[str, int]],
    ) -> None:
        self.base_collator = base_collator
        self.token_counting_func = token_counting_func

    def __call__(self, examples: list[Any]) -> dict[str, Any]:
        """Makes a batch of rows."""
        batch = self.base_collator(examples)
        present = [key for key in COUNTED_KEYS if key in batch]
        totals, targets = [], []
        for row in range(batch["input_ids"].shape[0]):
            counts = self.token_counting_func({key: batch[key][row : row + 1] for key in present})
            if isinstance(counts, dict):
                totals.append(counts["total"])
                targets.append(counts["loss_generating"])
            else:
                totals.append(counts)
                targets.append(counts)
        batch["total_tokens"] = totals
        batch["loss_generating_tokens"] = targets
        return batch
