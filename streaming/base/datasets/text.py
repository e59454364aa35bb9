"""Data sets of text that tokenise, or unpack, what their shards hold."""

from typing import Any

import numpy as np

from streaming.base.dataset import StreamingDataset

__all__ = ["StreamingC4", "StreamingEnWiki", "StreamingPile"]

IGNORED = -100
"""The label of a position without a loss."""


class StreamingC4(StreamingDataset):
    """C4 (1910.10683): text, tokenised as it is read.

    A sample is the tokenizer's output, cut and padded to ``max_seq_len``. A tokenizer without a pad
    token pads with its end-of-text token.

    Args:
        tokenizer_name: Name or folder of a Hugging Face tokenizer.
        max_seq_len: Tokens of a sample.
        group_method: How texts become samples: ``truncate``, each by itself.
        kwargs: As for :class:`StreamingDataset`.

    Raises:
        ValueError: The method is another one.
    """

    def __init__(
        self, *, tokenizer_name: str, max_seq_len: int, group_method: str, **kwargs: Any
    ) -> None:
        if group_method != "truncate":
            raise ValueError(f"group_method={group_method!r} is unknown; use 'truncate'.")
        from transformers import AutoTokenizer

        super().__init__(**kwargs)
        self.tokenizer = AutoTokenizer.from_pretrained(tokenizer_name)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.max_seq_len = max_seq_len
        self.group_method = group_method

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """Returns a text's ``input_ids`` and ``attention_mask``.

        Args:
            sample_id: Number of the sample.
            retry: As for :class:`StreamingDataset`.
        """
        text = super().get_item(sample_id, retry)["text"]
        return self.tokenizer(
            text, truncation=True, padding="max_length", max_length=self.max_seq_len
        )


class StreamingPile(StreamingC4):
    """The Pile (2101.00027): text, tokenised as it is read; see :class:`StreamingC4`."""


class StreamingEnWiki(StreamingDataset):
    """English Wikipedia as MLPerf prepares it for BERT: masked tokens, and sentence pairs.

    Columns are raw bytes: ``input_ids``, ``input_mask``, ``segment_ids``, ``masked_lm_positions``
    and ``masked_lm_ids``, all int32. Arguments are those of :class:`StreamingDataset`.
    """

    def get_item(self, sample_id: int, retry: int = 7) -> dict[str, Any]:
        """Returns what BERT takes, as int64: ids, types and mask of the tokens, and labels.

        Args:
            sample_id: Number of the sample.
            retry: As for :class:`StreamingDataset`.
        """
        row = super().get_item(sample_id, retry)

        def ids(name: str) -> np.ndarray:
            if name not in row:
                raise KeyError(f"Sample {sample_id} has no column {name}, only {sorted(row)}.")
            # A copy, for a view of bytes may not be written; int64, for losses take no other.
            return np.frombuffer(row[name], np.int32).astype(np.int64)

        labels = np.full(len(ids("input_ids")), IGNORED, np.int64)
        # Positions are padded with 0, where [CLS] stands, which is never masked.
        is_used = ids("masked_lm_positions") > 0
        labels[ids("masked_lm_positions")[is_used]] = ids("masked_lm_ids")[is_used]
        return {
            "input_ids": ids("input_ids"),
            "token_type_ids": ids("segment_ids"),
            "attention_mask": ids("input_mask"),
            "labels": labels,
        }
