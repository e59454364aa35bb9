"""How many tokens a batch holds, and how many of them are targets."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from llmfoundry.utils.consts import CROSS_ENTROPY_IGNORE_INDEX

__all__ = ["LossGeneratingTokensCollatorWrapper", "get_tokens_per_batch_func"]

Batch = Mapping[str, Any]

COUNTS = ("total", "loss_generating")

COUNTED_KEYS = ("input_ids", "attention_mask", "labels", "decoder_attention_mask")


class _TokenCounter:
    """Counts the tokens of a batch, or of each of its rows."""

    def __init__(self, decoder_only: bool, predicts_next: bool) -> None:
        self.decoder_only = decoder_only
        self.predicts_next = decoder_only and predicts_next

    def _check(self, batch: Batch) -> None:
        if not isinstance(batch, Mapping) or not (
            "attention_mask" in batch or "input_ids" in batch
        ):
            raise ValueError(
                "Tokens can only be counted in a batch that is a mapping with input_ids or "
                f"attention_mask; got {_describe(batch)}."
            )
        if not self.decoder_only and "decoder_attention_mask" not in batch:
            raise ValueError(
                "An encoder-decoder batch needs a decoder_attention_mask to be counted; got "
                f"{_describe(batch)}."
            )

    def __call__(self, batch: Batch) -> int | dict[str, int]:
        self._check(batch)
        if "total_tokens" in batch and "loss_generating_tokens" in batch:
            return {
                "total": int(sum(batch["total_tokens"])),
                "loss_generating": int(sum(batch["loss_generating_tokens"])),
            }
        totals, targets = self.rows(batch)
        if "labels" not in batch:
            return sum(totals)
        return {"total": sum(totals), "loss_generating": sum(targets)}

    def rows(self, batch: Batch) -> tuple[list[int], list[int]]:
        """Tokens and targets of each row; without labels every token is one."""
        self._check(batch)
        if "attention_mask" in batch:
            totals = batch["attention_mask"].flatten(1).sum(1)
        else:
            ids = batch["input_ids"]
            totals = torch.full((len(ids),), ids.shape[1:].numel())
        if not self.decoder_only:
            totals = totals + batch["decoder_attention_mask"].flatten(1).sum(1)
        if "labels" not in batch:
            return totals.tolist(), totals.tolist()
        labels = batch["labels"][..., 1:] if self.predicts_next else batch["labels"]
        targets = torch.count_nonzero(labels != CROSS_ENTROPY_IGNORE_INDEX, dim=-1)
        return totals.tolist(), targets.reshape(len(labels), -1).sum(1).tolist()


def get_tokens_per_batch_func(
    decoder_only: bool = True, predicts_next: bool = True
) -> Callable[[Batch], int | dict[str, int]]:
    """Gives a function that counts the tokens of a batch.

    The function returns ``{"total": ..., "loss_generating": ...}`` for a batch with labels, and the
    total alone for one without. A batch that carries the lists of
    :class:`LossGeneratingTokensCollatorWrapper` is not counted again.

    Args:
        decoder_only: False also counts the decoder's tokens of an encoder-decoder batch.
        predicts_next: Whether a label is predicted from what is before it, as the first of a row
            cannot be. A masked language model and a decoder predict them all.
    """
    return _TokenCounter(decoder_only, predicts_next)


def _describe(batch: object) -> str:
    return f"keys {sorted(batch)}" if isinstance(batch, Mapping) else type(batch).__name__


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
        present = {key: batch[key] for key in COUNTED_KEYS if key in batch}
        if isinstance(self.token_counting_func, _TokenCounter):
            totals, targets = self.token_counting_func.rows(present)
        else:
            totals, targets = self._row_by_row(present)
        batch["total_tokens"] = totals
        batch["loss_generating_tokens"] = targets
        return batch

    def _row_by_row(self, batch: Batch) -> tuple[list[int], list[int]]:
        totals, targets = [], []
        for row in range(batch["input_ids"].shape[0]):
            counts = self.token_counting_func({key: batch[key][row : row + 1] for key in batch})
            both = counts if isinstance(counts, dict) else dict.fromkeys(COUNTS, counts)
            totals.append(both["total"])
            targets.append(both["loss_generating"])
        return totals, targets
