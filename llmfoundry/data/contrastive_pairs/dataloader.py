"""The ``contrastive_pairs`` loader: queries, their passages and hard negatives from MDS shards.

Legend: B rows of a batch, P texts of a row (query, passage, negatives), S tokens of a text.
"""

import inspect
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from composer.core.data_spec import DataSpec
from llmfoundry.builders.declared_keys import declares_keys
from llmfoundry.data.loader_options import LoaderOptions, check_dataset_keys
from llmfoundry.data.text_data import StreamingTextDataset, build_streams
from llmfoundry.data.text_rows import check_padding
from llmfoundry.data.text_samples import columns_of, place_of
from llmfoundry.data.utils import validate_dataset_replication
from streaming.base.dataset import StreamingDataset
from streaming.base.stream import Stream

__all__ = ["PairsCollator", "StreamingPairsDataset", "build_pairs_dataloader"]

QUERY, PASSAGE, NEGATIVES = "query_text", "positive_passage", "negative_passages"


class StreamingPairsDataset(StreamingTextDataset):
    """Gives a query, the passage that belongs to it, and hard negatives, as token rows.

    A sample has a column that begins with ``text_a`` (the query) and one that begins with
    ``text_b`` (its passage); or ``query_text``, ``positive_passage`` and, if there are hard
    negatives, ``negative_passages``, a list of texts or its JSON. Each text is tokenised and padded
    to ``max_seq_len``; what is longer is cut, but keeps what is appended.

    Args:
        max_hard_negatives: Hard negatives of a row at most; None takes all.
        prepend_query: Text before each query.
        prepend_passage: Text before each passage, negatives included.
        append_eos_token: Ends each text with the end token, unless the tokenizer does so itself.
        append_token: Text behind each text, instead.
        shuffle_hard_negatives: Puts the hard negatives in an order that depends on
            ``shuffle_seed``, the epoch and the row, before some are taken.
        **kwargs: The arguments of :class:`StreamingTextDataset`.

    Raises:
        ValueError: Settings exclude each other or would have no effect.
    """

    taken_columns = ()

    def __init__(
        self,
        max_hard_negatives: int | None = None,
        prepend_query: str = "",
        prepend_passage: str = "",
        append_eos_token: bool = False,
        append_token: str = "",
        shuffle_hard_negatives: bool = False,
        **kwargs: Any,
    ) -> None:
        if append_eos_token and append_token:
            raise ValueError(
                f"append_eos_token and append_token={append_token!r} are two ways to end a text; "
                "set one of them."
            )
        if max_hard_negatives is not None and max_hard_negatives < 0:
            raise ValueError(f"max_hard_negatives={max_hard_negatives} must be 0 or more.")
        tokenizer = kwargs.get("tokenizer")
        check_padding(tokenizer)
        super().__init__(**kwargs)
        self.max_hard_negatives = max_hard_negatives
        self.prepend_query, self.prepend_passage = prepend_query, prepend_passage
        self.append_token = _end_to_append(tokenizer) if append_eos_token else append_token
        self.shuffle_hard_negatives = shuffle_hard_negatives
        self._end_ids: list[int] = []
        if self.append_token:
            self._end_ids = self.tokenizer(self.append_token, add_special_tokens=False)["input_ids"]
            self._end_ids += [self.tokenizer.eos_token_id] * _ends_itself(self.tokenizer)
        self._check_columns()

    def _set_shards(self) -> None:
        super(StreamingTextDataset, self)._set_shards()  # Which expects columns of its own.

    def _check_columns(self) -> None:
        has_negatives = False
        for stream, first in zip(self.streams, self.shard_offset_per_stream, strict=True):
            columns = columns_of(self.shards[first])
            try:
                _columns_of_pair(columns)
            except ValueError as error:
                raise ValueError(f"{stream.folder}: {error}") from error
            has_negatives = has_negatives or NEGATIVES in columns
        idle = {
            "max_hard_negatives": self.max_hard_negatives,
            "shuffle_hard_negatives": self.shuffle_hard_negatives,
        }
        for name, value in idle.items():
            if value and not has_negatives:
                raise ValueError(
                    f"{name}={value} has no effect: no stream has a column {NEGATIVES!r}. Remove "
                    f"{name}, or prepare the data with hard negatives."
                )

    def make_row(self, sample: Mapping[str, Any], sample_id: int) -> dict[str, Any]:
        """Makes the texts of a sample rows of tokens, ``[P][S]``, and says which sample it is."""
        query, passage = (
            _text(sample[name], f"column {name!r}") for name in _columns_of_pair(sample)
        )
        passages = [passage, *self._negatives(sample, sample_id)]
        texts = [f"{self.prepend_query}{query}{self.append_token}"]
        texts += [f"{self.prepend_passage}{each}{self.append_token}" for each in passages]
        rows = self.tokenizer(
            texts, truncation=True, padding="max_length", max_length=self.max_seq_len
        )
        ids, masks = np.asarray(rows["input_ids"]), np.asarray(rows["attention_mask"])
        if self._end_ids:
            # A row without padding may have been cut, and its end with it.
            ids[masks.all(axis=1), -len(self._end_ids) :] = self._end_ids
        return {"input_ids": ids, "attention_mask": masks, "sample_id": sample_id}

    def _negatives(self, sample: Mapping[str, Any], sample_id: int) -> list[str]:
        value = sample.get(NEGATIVES) or []
        if isinstance(value, (str, bytes)):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"column {NEGATIVES!r} must be a list of texts as JSON, and does not read as "
                    f"such ({error}): {value!r:.80}."
                ) from error
        if not isinstance(value, list):
            raise ValueError(f"column {NEGATIVES!r} must be a list of texts, and is {value!r:.80}.")
        texts = [_text(each, f"text {n} of column {NEGATIVES!r}") for n, each in enumerate(value)]
        if self.shuffle_hard_negatives:
            # Of this row and epoch alone, so that a run that goes on draws what it would have.
            np.random.default_rng([self.shuffle_seed, self.next_epoch, sample_id]).shuffle(texts)
        return texts[: self.max_hard_negatives]


def _end_to_append(tokenizer: Any) -> str:
    """The end token; nothing if the tokenizer adds it itself."""
    if tokenizer.eos_token is None:
        raise ValueError("append_eos_token is set, and the tokenizer has no end token.")
    return "" if _ends_itself(tokenizer) else tokenizer.eos_token


def _ends_itself(tokenizer: Any) -> bool:
    """Tells whether the tokenizer puts the end token behind each text."""
    return tokenizer("a")["input_ids"][-1] == tokenizer.eos_token_id


def _columns_of_pair(columns: Mapping[str, Any]) -> tuple[str, str]:
    """Names of the columns with the query and the passage."""
    queries = [name for name in columns if name.startswith("text_a")]
    passages = [name for name in columns if name.startswith("text_b")]
    if len(queries) == len(passages) == 1:
        return queries[0], passages[0]
    if QUERY in columns and PASSAGE in columns and not queries and not passages:
        return QUERY, PASSAGE
    raise ValueError(
        f"samples have the columns {sorted(columns)}; the contrastive_pairs loader needs one that "
        f"begins with text_a and one that begins with text_b, or {QUERY} and {PASSAGE} (and "
        f"{NEGATIVES}). Prepare the data again with these."
    )


def _text(value: Any, where: str) -> str:
    text = value.decode("utf-8") if isinstance(value, bytes) else value
    if not isinstance(text, str) or not text:
        raise ValueError(f"{where} must be a text that is not empty, and is {text!r:.80}.")
    return text


class PairsCollator:
    """Stacks rows of as many texts: ``input_ids`` and ``attention_mask``, int64 ``[B, P, S]``.

    Args:
        dataset: The data set that the rows are of, to say where one is that does not fit.
    """

    def __init__(self, dataset: StreamingPairsDataset) -> None:
        self.dataset = dataset

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Makes a batch.

        Raises:
            ValueError: The rows have different numbers of texts.
        """
        by_count = {len(row["input_ids"]): row["sample_id"] for row in reversed(rows)}
        if len(by_count) > 1:
            found = ", ".join(
                f"{count - 2} in {place_of(self.dataset, sample_id)}"
                for count, sample_id in sorted(by_count.items())
            )
            raise ValueError(
                f"The rows of a batch need as many hard negatives each, and have {found}. Set "
                f"max_hard_negatives to the least, here {min(by_count) - 2}, or prepare rows alike."
            )
        return {
            key: torch.from_numpy(np.stack([row[key] for row in rows]))
            for key in ("input_ids", "attention_mask")
        }


DATASET_KEYS = (
    set(inspect.signature(StreamingDataset).parameters)
    | set(inspect.signature(StreamingTextDataset).parameters)
    | set(inspect.signature(StreamingPairsDataset).parameters)
) - {"tokenizer", "batch_size", "kwargs", "token_encoding_type", "max_hard_negatives"}


@declares_keys(
    {"dataset": DATASET_KEYS, "dataset.streams.*": set(inspect.signature(Stream).parameters)}
)
def build_pairs_dataloader(
    dataset: dict[str, Any],
    tokenizer: Any,
    device_batch_size: int | float,
    drop_last: bool,
    num_workers: int,
    pin_memory: bool = True,
    prefetch_factor: int | None = 2,
    persistent_workers: bool = True,
    timeout: int = 0,
    max_hard_negatives: int | None = None,
) -> DataSpec:
    """Builds the loader of texts that belong together, as ``contrastive_lm`` trains on.

    Args:
        dataset: The source and its settings, as of the ``text`` loader; and ``prepend_query``,
            ``prepend_passage``, ``append_eos_token``, ``append_token`` and
            ``shuffle_hard_negatives``.
        tokenizer: The tokenizer; without a padding token it pads with the end token.
        device_batch_size: Rows of a batch on this device.
        drop_last: As of :class:`LoaderOptions`, and so are the others.
        num_workers: Worker processes of the loader.
        pin_memory: Pins batches for a faster copy to the GPU.
        prefetch_factor: Batches that each worker keeps ready.
        persistent_workers: Keeps the workers from epoch to epoch.
        timeout: Seconds to wait for a worker; 0 waits.
        max_hard_negatives: Hard negatives of a row at most; None takes all.

    Raises:
        TypeError: A setting of the data set is unknown.
        ValueError: A setting is wrong or has no effect, or a column is missing.
        NotEnoughDatasetSamplesError: There is less than one batch, and it is to be dropped.
    """
    if tokenizer is None:
        raise ValueError("Tokenizer is required for the contrastive_pairs dataloader")
    dataset = dict(dataset)
    check_dataset_keys(dataset, DATASET_KEYS)
    options = LoaderOptions(
        drop_last, num_workers, pin_memory, prefetch_factor, persistent_workers, timeout
    )
    replication, batch_size = validate_dataset_replication(
        dataset_cfg=dataset, tokenizer=tokenizer, device_batch_size=device_batch_size
    )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    arguments = dataset | {
        "streams": build_streams(dataset.get("streams")) or None,
        "replication": replication if replication > 1 else None,
    }
    pairs = StreamingPairsDataset(
        tokenizer=tokenizer,
        batch_size=batch_size,
        max_hard_negatives=max_hard_negatives,
        **arguments,
    )
    loader = options.loader(pairs, PairsCollator(pairs), batch_size, dataset)
    return DataSpec(loader, get_num_tokens_in_batch=_count)


def _count(batch: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Tokens without padding; the loss is a mean over the queries, one of each row."""
    return {"total": int(batch["attention_mask"].sum()), "loss_generating": len(batch["input_ids"])}
