"""From a sample with texts or token ids to a row of token ids."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from llmfoundry.data.best_fit_packing import LENGTHS_COLUMN
from llmfoundry.data.text_samples import token_ids

__all__ = ["TextRows", "check_padding", "text_of"]


class TextRows:
    """Makes rows of token ids from samples with ``text`` or ``tokens``."""

    tokenizer: Any
    max_seq_len: int
    token_encoding_type: str

    def make_row(self, sample: Mapping[str, Any], sample_id: int) -> Any:
        """Makes a row of a sample."""
        del sample_id
        if "text" in sample:
            return self._tokenize(sample)
        if "tokens" in sample:
            # The copy to int64 also takes the row out of the shard's memory, which is not ours.
            ids = self.ids_of(sample["tokens"], self.max_seq_len).astype(np.int64)
            row = torch.from_numpy(ids)
            return _of_documents(row, sample[LENGTHS_COLUMN]) if LENGTHS_COLUMN in sample else row
        raise RuntimeError(
            "StreamingTextDataset needs samples with a text or a tokens column; these have "
            f"{sorted(sample)}."
        )

    def _tokenize(self, sample: Mapping[str, Any]) -> dict[str, list[int]]:
        check_padding(self.tokenizer)
        return dict(
            self.tokenizer(
                text_of(sample),
                truncation=True,
                padding="max_length",
                max_length=self.max_seq_len,
            )
        )

    def ids_of(self, tokens: Any, limit: int | None = None) -> NDArray[Any]:
        """The ids of a column of tokens, at most ``limit``, as it is written.

        Raises:
            ValueError: It is no row of ids, or one of another tokenizer.
        """
        ids = token_ids(tokens, self.token_encoding_type)[:limit]
        if isinstance(tokens, bytes) and len(ids) and int(ids.max()) > self._last_token:
            raise ValueError(
                f"column 'tokens' holds {int(ids.max())}, and the tokenizer's last token is "
                f"{self._last_token}: it was not written as token_encoding_type="
                f"{self.token_encoding_type}, or not with this tokenizer."
            )
        return ids

    @functools.cached_property
    def _last_token(self) -> int:
        return max(self.tokenizer.get_vocab().values())


def text_of(sample: Mapping[str, Any]) -> str:
    """The text of a sample; ValueError if it is none."""
    text = sample["text"]
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    if not isinstance(text, str):
        raise ValueError(f"column 'text' must be text, and is {text!r:.80}.")
    return text


def check_padding(tokenizer: Any) -> None:
    """Refuses a tokenizer that cannot pad.

    Raises:
        RuntimeError: It has no padding token.
    """
    if tokenizer.pad_token is None:
        raise RuntimeError("If tokenizing on-the-fly, tokenizer must have a pad_token_id")


def _of_documents(row: torch.Tensor, lengths: Any) -> dict[str, torch.Tensor]:
    """Tells the documents of a row apart, and its padding from them."""
    sizes = torch.from_numpy(lengths.astype(np.int64))
    ends, places = sizes.cumsum(0), torch.arange(len(row))
    documents = torch.searchsorted(ends, places, right=True)
    starts = torch.cat([ends - sizes, torch.full((1,), len(row))])[documents]
    documents[documents == len(ends)] = -1
    return {
        "input_ids": row,
        "attention_mask": (documents >= 0).long(),
        "sequence_id": documents,
        "position_ids": (places - starts).clamp_min_(0),
    }
