"""Text and token rows over a set of documents, for writing and for training."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from llmfoundry.data.concatenation import TokenConcatenator, find_separators

__all__ = [
    "SUPPORTED_MDS_ENCODING_TYPES",
    "AbstractConcatTokensDataset",
    "ConcatTokensDataset",
    "NoConcatDataset",
    "check_token_encoding_type",
    "stream_remote_local_validate",
]

SUPPORTED_MDS_ENCODING_TYPES: list[str] = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]

TOKENIZER_BATCH = 256


def check_token_encoding_type(token_encoding_type: str) -> None:
    """Refuses a number type that tokens cannot be written as.

    Raises:
        ValueError: It is none of the integers.
    """
    if token_encoding_type not in SUPPORTED_MDS_ENCODING_TYPES:
        raise ValueError(
            f"The token_encoding_type must be one of {SUPPORTED_MDS_ENCODING_TYPES}, but got "
            f"{token_encoding_type}"
        )


class NoConcatDataset(IterableDataset[dict[str, bytes]]):
    """Yields each document's text as it is, in UTF-8.

    Args:
        hf_dataset: Rows with a ``text``.
    """

    def __init__(self, hf_dataset: Iterable[Mapping[str, Any]]) -> None:
        self.hf_dataset = hf_dataset

    def __iter__(self) -> Iterator[dict[str, bytes]]:
        for row in self.hf_dataset:
            yield {"text": row["text"].encode("utf-8")}


class AbstractConcatTokensDataset(ABC, IterableDataset[dict[str, NDArray[Any]]]):
    """Yields rows of ``max_length`` tokens; a subclass says where the documents come from.

    Args:
        tokenizer: Turns text into token ids.
        max_length: Tokens of a row.
        bos_text: Text of the token that starts each document; empty leaves it to the tokenizer.
        eos_text: Text of the token that ends each document; empty leaves it to the tokenizer.
        no_wrap: Throws away what a full row leaves of its documents.

    Raises:
        ValueError: No token would separate the documents, or one would be there twice.
    """

    def __init__(
        self, tokenizer: Any, max_length: int, bos_text: str, eos_text: str, no_wrap: bool
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.bos_text = bos_text
        self.eos_text = eos_text
        self.should_wrap = not no_wrap
        self.separators = find_separators(tokenizer, bos_text, eos_text)
        self.bos_tokens = list(self.separators.before)
        self.eos_tokens = list(self.separators.after)
        self.concatenator = TokenConcatenator(max_length, self.separators, no_wrap)

    @abstractmethod
    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Yields ``{'tokens': int32 array}``."""


class ConcatTokensDataset(AbstractConcatTokensDataset):
    """Joins the texts of a data set into rows of ``max_length`` tokens.

    Args:
        hf_dataset: Rows with a ``text``.
        tokenizer: Turns text into token ids; called with batches of texts.
        max_length: Tokens of a row.
        bos_text: Text of the token that starts each document; empty leaves it to the tokenizer.
        eos_text: Text of the token that ends each document; empty leaves it to the tokenizer.
        no_wrap: Throws away what a full row leaves of its documents.
    """

    def __init__(
        self,
        hf_dataset: Iterable[Mapping[str, Any]],
        tokenizer: Any,
        max_length: int,
        bos_text: str,
        eos_text: str,
        no_wrap: bool,
    ) -> None:
        self.hf_dataset = hf_dataset
        super().__init__(tokenizer, max_length, bos_text, eos_text, no_wrap)

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        # A fresh concatenator: a second pass must not begin with the first one's remainder.
        self.concatenator = TokenConcatenator(
            self.max_length, self.separators, not self.should_wrap
        )
        for row in self.concatenator.documents([ids] for ids in self._tokenized()):
            yield {"tokens": row}

    def _tokenized(self) -> Iterator[list[int]]:
        texts = (row["text"] for row in self.hf_dataset)
        while batch := list(islice(texts, TOKENIZER_BATCH)):
            yield from self.tokenizer(
                batch, truncation=False, padding=False, add_special_tokens=False
            )["input_ids"]


def stream_remote_local_validate(remote: str | None, local: str | None, split: str | None) -> None:
    """Refuses a local data folder that lacks the split, before a loader hides why.

    Raises:
        ValueError: ``local`` is the only source, exists, and has no folder ``split``.
    """
    if split is None or local is None or (remote is not None and remote != local):
        return
    folder = Path(local)
    if folder.is_dir() and not (folder / split).exists():
        present = sorted(each.name for each in folder.iterdir())
        raise ValueError(
            f"Local directory {local} does not contain split {split}; it holds {present}."
        )
