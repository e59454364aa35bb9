"""Fine-tuning rows packed ahead by best fit: each once an epoch, none split, none left over."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from llmfoundry.data.finetuning.stitching import TargetPolicy, stitch_turns_decoder_only
from llmfoundry.data.finetuning.streaming_dataset import StreamingFinetuningDataset
from llmfoundry.data.finetuning.tokenized_rows import at_row
from llmfoundry.data.packed_dataset import PackedDataset, Row, tokenizer_fingerprint
from llmfoundry.data.packing_index import Packing
from llmfoundry.utils.consts import CROSS_ENTROPY_IGNORE_INDEX

__all__ = ["PackedFinetuningDataset", "stack_packed_rows"]

NOTHING: Row = {"input_ids": [], "labels": []}


class PackedFinetuningDataset(PackedDataset, StreamingFinetuningDataset):
    """Gives rows of ``max_seq_len`` tokens that hold whole prompts and answers, packed by best fit.

    A row that is longer is cut, and one with nothing to learn is left out; the packing report
    counts both.

    Args:
        tokenizer: Names the tokens that end and pad; tokenises rows of text.
        policy: Which tokens are learnt.
        **kwargs: Every other argument of :class:`StreamingFinetuningDataset`.
    """

    def __init__(self, tokenizer: Any, policy: TargetPolicy, **kwargs: Any) -> None:
        self._policy = policy
        reader = f"{policy} {tokenizer.eos_token_id} {tokenizer_fingerprint(tokenizer)}"
        # Another date may have other tokens. One that is not given is new each day, the plan not.
        reader += f" {kwargs['date_string']}" if kwargs.get("date_string") else ""
        super().__init__(
            packing=Packing(policy.max_seq_len, tokenizer.pad_token_id, "cut", reader=reader),
            row_of=self._stitched,
            tokenizer=tokenizer,
            max_seq_len=policy.max_seq_len,
            **kwargs,
        )

    def _row(self, shard: int, offset: int, retry: int = 7) -> Row:
        with at_row(lambda: self.shards[shard].place(offset)):
            return super()._row(shard, offset, retry)

    def _stitched(self, sample: Mapping[str, Any]) -> Row:
        policy = self._policy
        ids, labels = stitch_turns_decoder_only(
            self.get_turns(sample),
            policy.target_prompts,
            policy.target_responses,
            self.tokenizer.eos_token_id,
        )
        learnt = labels[1 : policy.max_seq_len]
        if learnt.count(CROSS_ENTROPY_IGNORE_INDEX) == len(learnt):
            return NOTHING
        return {"input_ids": ids, "labels": labels}


def stack_packed_rows(rows: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Makes a batch of rows that are packed already."""
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
