"""Token rows into batches; labels come from what is padding, never from what a token looks like."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from llmfoundry.utils.consts import CROSS_ENTROPY_IGNORE_INDEX

__all__ = ["ConcatenatedSequenceCollatorWrapper", "TextCollator", "masked_language_collator"]

Collator = Callable[[list[Any]], dict[str, Any]]


class TextCollator:
    """Stacks rows of one length; ``labels`` are the inputs, with ``-100`` on padding.

    Padding is where the attention mask is 0, and, in rows without one, a padding token that is not
    also the end token. An end token is a target like any other: a model that never learns it never
    stops. The first token of each document in a row that names its documents (``sequence_id``) is
    no target, as it is none of a document alone: what comes before it is another document.

    Args:
        tokenizer: Names the padding and the end token.
    """

    def __init__(self, tokenizer: Any) -> None:
        pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
        self.padding_id: int | None = None if pad == eos else pad

    def __call__(self, examples: list[Any]) -> dict[str, Any]:
        """Makes a batch of rows."""
        batch: dict[str, Any] = {}
        kinds = {tuple(each) if isinstance(each, Mapping) else ("tokens",) for each in examples}
        if len(kinds) > 1:
            raise ValueError(
                f"The rows of a batch are of different kinds, {sorted(kinds)}. Prepare all streams "
                "of a data set alike: texts or tokens, and with one kind of packing."
            )
        if isinstance(examples[0], Mapping):
            for key in examples[0]:
                batch[key] = _stack([example[key] for example in examples])
        else:
            batch["input_ids"] = _stack(examples)
        labels = batch["input_ids"].clone()
        if "attention_mask" in batch:
            labels.masked_fill_(batch["attention_mask"] == 0, CROSS_ENTROPY_IGNORE_INDEX)
        elif self.padding_id is not None:
            labels.masked_fill_(labels == self.padding_id, CROSS_ENTROPY_IGNORE_INDEX)
        if "sequence_id" in batch:
            document = batch["sequence_id"]
            first = document[:, 1:] != document[:, :-1]
            labels[:, 1:].masked_fill_(first, CROSS_ENTROPY_IGNORE_INDEX)
        batch["labels"] = labels
        return batch


def _stack(rows: Sequence[Any]) -> torch.Tensor:
    tensors = [torch.as_tensor(row, dtype=torch.int64) for row in rows]
    lengths = {len(tensor) for tensor in tensors}
    if len(lengths) > 1:
        raise ValueError(
            f"The rows of a batch have different lengths {sorted(lengths)}. Write the data with "
            "one number of tokens a row (concat_tokens), or lower max_seq_len to the shortest."
        )
    return torch.stack(tensors)


def masked_language_collator(tokenizer: Any, mlm_probability: float) -> Collator:
    """Builds a collator that hides tokens for the model to find (masked language modelling)."""
    from transformers import DataCollatorForLanguageModeling

    collator = DataCollatorForLanguageModeling(
        tokenizer=tokenizer, mlm=True, mlm_probability=mlm_probability
    )

    def collate(examples: list[Any]) -> dict[str, Any]:
        return dict(collator(examples))

    return collate


class ConcatenatedSequenceCollatorWrapper:
    """Adds ``sequence_id``, which says which document of its row each token belongs to.

    Rows that know their documents, as packing by best fit writes them, keep what they say.

    Args:
        base_collator: Makes the batch.
        eos_token_id: The token that ends a document; it belongs to the document that it ends.
        bos_token_id: The token that starts a document. Exactly one of the two is given.
    """

    def __init__(
        self,
        base_collator: Collator,
        eos_token_id: int | None = None,
        bos_token_id: int | None = None,
    ) -> None:
        self.base_collator = base_collator
        if eos_token_id is None and bos_token_id is None:
            raise ValueError(
                "Must supply a value for either eos_token_id or bos_token_id, but got None for "
                "both."
            )
        if eos_token_id is not None and bos_token_id is not None:
            raise ValueError(
                "Cannot use *both* EOS and BOS tokens for detecting sequence boundaries. Please "
                "supply `eos_token_id` if sequences end with an EOS token, or use `bos_token_id` "
                "if sequences start with a BOS token."
            )
        self.bos_mode = bos_token_id is not None
        self.split_token_id = bos_token_id if self.bos_mode else eos_token_id

    def __call__(self, examples: list[Any]) -> dict[str, Any]:
        """Makes a batch of rows."""
        batch = self.base_collator(examples)
        if "sequence_id" not in batch:
            batch["sequence_id"] = self.get_sequence_id_from_batch(batch)
        return batch

    def get_sequence_id_from_batch(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Numbers the documents of each row, from the boundaries that ``input_ids`` shows."""
        documents = torch.cumsum(batch["input_ids"] == self.split_token_id, dim=1)
        if self.bos_mode:
            return documents
        # An end token is the last of its own document: the count rises one place later.
        first = torch.zeros_like(documents[:, :1])
        return torch.cat([first, documents[:, :-1]], dim=1)
