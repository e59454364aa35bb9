"""The ``text`` loader: token rows (or texts) from MDS shards, for pre-training."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from composer.core.data_spec import DataSpec
from composer.utils import dist
from llmfoundry.builders.declared_keys import declares_keys
from llmfoundry.data.best_fit_packing import LENGTHS_COLUMN
from llmfoundry.data.data import SUPPORTED_MDS_ENCODING_TYPES, stream_remote_local_validate
from llmfoundry.data.utils import build_collator, build_data_spec, validate_dataset_replication
from llmfoundry.utils.exceptions import NotEnoughDatasetSamplesError
from streaming.base.dataset import StreamingDataset
from streaming.base.stream import Stream

__all__ = ["StreamingTextDataset", "build_streams", "build_text_dataloader"]


class StreamingTextDataset(StreamingDataset):
    """Gives the samples of MDS shards as rows of token ids.

    A sample holds ``tokens`` (an array, or raw bytes of ``token_encoding_type``), of which the
    first ``max_seq_len`` are taken, or ``text``, which is tokenised and padded to ``max_seq_len``.
    Beside ``tokens`` there may be ``document_lengths``, as packing by best fit writes them: the row
    then has an ``attention_mask``, 0 behind its last document, and ``sequence_id``, the number of
    each token's document, -1 at padding.

    Args:
        tokenizer: Tokenises ``text`` samples.
        max_seq_len: Tokens of a row at most.
        token_encoding_type: Number type of token ids that were written as raw bytes.
        streams: The streams to mix, instead of ``remote`` and ``local``.
        remote: Where the shards are.
        local: Where the shards are, or are kept once downloaded.
        split: The subfolder to take.
        shuffle: Whether each epoch has an order of its own.
        batch_size: Samples of a batch on one device.
        **kwargs: Every other argument of :class:`streaming.StreamingDataset`.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_seq_len: int,
        token_encoding_type: str = "int64",
        streams: list[Stream] | None = None,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        shuffle: bool = False,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        if token_encoding_type not in SUPPORTED_MDS_ENCODING_TYPES:
            raise ValueError(
                f"The token_encoding_type must be one of {SUPPORTED_MDS_ENCODING_TYPES}, but got "
                f"{token_encoding_type}"
            )
        self.token_encoding_type = token_encoding_type
        block_size = kwargs.get("shuffle_block_size")
        if isinstance(block_size, float):
            kwargs["shuffle_block_size"] = int(block_size)
        if not streams:
            stream_remote_local_validate(remote, local, split)
        super().__init__(
            streams=streams,
            remote=remote,
            local=local,
            split=split,
            shuffle=shuffle,
            batch_size=batch_size,
            **kwargs,
        )
        self.tokenizer = tokenizer
        self.max_seq_len = max_seq_len

    def __getitem__(self, idx: Any) -> Any:
        sample = super().__getitem__(idx)
        if "text" in sample:
            return self._tokenize(sample)
        if "tokens" in sample:
            row = self._read_tokens(sample["tokens"])
            return _of_documents(row, sample[LENGTHS_COLUMN]) if LENGTHS_COLUMN in sample else row
        raise RuntimeError(
            "StreamingTextDataset needs samples with a text or a tokens column; these have "
            f"{sorted(sample)}."
        )

    def _tokenize(self, sample: Mapping[str, Any]) -> dict[str, list[int]]:
        if self.tokenizer.pad_token is None:
            raise RuntimeError("If tokenizing on-the-fly, tokenizer must have a pad_token_id")
        text = sample["text"]
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        return dict(
            self.tokenizer(text, truncation=True, padding="max_length", max_length=self.max_seq_len)
        )

    def _read_tokens(self, tokens: Any) -> torch.Tensor:
        if isinstance(tokens, bytes):
            tokens = np.frombuffer(tokens, dtype=self.token_encoding_type)
        # The copy to int64 also takes the row out of the shard's memory, which is not ours.
        return torch.from_numpy(tokens[: self.max_seq_len].astype(np.int64))


def _of_documents(row: torch.Tensor, lengths: Any) -> dict[str, torch.Tensor]:
    """Tells the documents of a row apart, and its padding from them."""
    ends = torch.from_numpy(lengths.astype(np.int64)).cumsum(0)
    places = torch.arange(len(row))
    documents = torch.searchsorted(ends, places, right=True)
    documents[documents == len(ends)] = -1
    return {
        "input_ids": row,
        "attention_mask": (documents >= 0).long(),
        "sequence_id": documents,
    }


def build_streams(streams: Mapping[str, Mapping[str, Any]] | None) -> list[Stream]:
    """Builds the streams that a recipe describes by name."""
    return [Stream(**settings) for settings in (streams or {}).values()]


DATASET_KEYS = (
    set(inspect.signature(StreamingDataset).parameters)
    | set(inspect.signature(StreamingTextDataset).parameters)
    | {
        "eos_token_id",
        "bos_token_id",
        "mlm_probability",
        "override_eos_token_id_mismatch_error",
        "override_bos_token_id_mismatch_error",
        "seq_parallel_replication",
    }
) - {"tokenizer", "batch_size", "kwargs", "self"}

COLLATOR_KEYS = ("eos_token_id", "bos_token_id", "mlm_probability")


@declares_keys(
    {"dataset": DATASET_KEYS, "dataset.streams.*": set(inspect.signature(Stream).parameters)}
)
def build_text_dataloader(
    tokenizer: Any,
    device_batch_size: int | float,
    dataset: dict[str, Any],
    drop_last: bool,
    num_workers: int,
    pin_memory: bool = True,
    prefetch_factor: int | None = 2,
    persistent_workers: bool = True,
    timeout: int = 0,
) -> DataSpec:
    """Builds the loader of pre-training rows.

    Args:
        tokenizer: The tokenizer that the rows were, or are to be, made with.
        device_batch_size: Samples of a batch on this device.
        dataset: ``max_seq_len`` (required); the source: ``local``, ``remote`` and ``split``, or
            ``streams`` by name; ``eos_token_id`` or ``bos_token_id`` to tell documents of one row
            apart (``sequence_id``), which rows packed by best fit are by themselves; and every
            setting of :class:`streaming.StreamingDataset`.
        drop_last: Leaves out a last batch that is not full.
        num_workers: Worker processes of the loader; 0 reads in the main process, and then
            ``prefetch_factor`` and ``persistent_workers`` mean nothing.
        pin_memory: Pins batches for a faster copy to the GPU; without one nothing is pinned.
        prefetch_factor: Batches that each worker keeps ready.
        persistent_workers: Keeps the workers from epoch to epoch.
        timeout: Seconds to wait for a worker; 0 waits.
    """
    if tokenizer is None:
        raise ValueError("Tokenizer is required for text dataloader")
    dataset = dict(dataset)
    replication, dataset_batch_size = validate_dataset_replication(
        dataset_cfg=dataset, tokenizer=tokenizer, device_batch_size=device_batch_size
    )
    collator, dataloader_batch_size = build_collator(
        "text_collator", {"dataset": dataset}, tokenizer, dataset_batch_size
    )
    unknown = sorted(set(dataset) - DATASET_KEYS)
    if unknown:
        raise TypeError(
            f"train_loader/eval_loader dataset got an unexpected keyword argument: {unknown}."
        )
    arguments = {key: value for key, value in dataset.items() if key not in COLLATOR_KEYS}
    arguments["streams"] = build_streams(dataset.get("streams")) or None
    arguments["replication"] = replication if replication > 1 else None
    text_dataset = StreamingTextDataset(
        tokenizer=tokenizer, batch_size=dataloader_batch_size, **arguments
    )
    _check_size(text_dataset, dataset, dataloader_batch_size, drop_last)
    loader = DataLoader(
        text_dataset,
        collate_fn=collator,
        batch_size=dataloader_batch_size,
        drop_last=drop_last,
        num_workers=num_workers,
        pin_memory=pin_memory and torch.cuda.is_available(),
        prefetch_factor=prefetch_factor if num_workers > 0 else None,
        persistent_workers=persistent_workers and num_workers > 0,
        timeout=timeout,
    )
    return build_data_spec(loader, dataset)


def _check_size(
    text_dataset: StreamingTextDataset,
    dataset: Mapping[str, Any],
    batch_size: int,
    drop_last: bool,
) -> None:
    """Refuses a loader that would yield nothing: less than one batch, and that one dropped."""
    if not drop_last or len(text_dataset) >= batch_size:
        return
    world_size = dist.get_world_size()
    raise NotEnoughDatasetSamplesError(
        dataset_name=str(dataset.get("local") or dataset.get("remote") or dataset.get("streams")),
        split=str(dataset.get("split")),
        dataloader_batch_size=batch_size,
        world_size=world_size,
        full_dataset_size=text_dataset.size,
        minimum_dataset_size=world_size * batch_size,
    )
