"""The ``text`` loader: token rows (or texts) from MDS shards, for pre-training."""

import inspect
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from composer.core.data_spec import DataSpec
from llmfoundry.builders.declared_keys import declares_keys
from llmfoundry.data.best_fit_packing import LENGTHS_COLUMN, find_padding
from llmfoundry.data.concatenation import Separators, find_separators
from llmfoundry.data.data import check_token_encoding_type, stream_remote_local_validate
from llmfoundry.data.hf_rows import (
    HF_KEYS,
    StreamedTextDataset,
    build_rows_stream,
    is_streamed,
    load_rows,
)
from llmfoundry.data.loader_options import LoaderOptions, check_dataset_keys
from llmfoundry.data.packed_dataset import PackedDataset, Place, Row, tokenizer_fingerprint
from llmfoundry.data.packing_index import Packing
from llmfoundry.data.text_collator import ConcatenatedSequenceCollatorWrapper
from llmfoundry.data.text_rows import TextRows, text_of
from llmfoundry.data.text_samples import check_columns, columns_of, place_of
from llmfoundry.data.utils import build_collator, build_data_spec, validate_dataset_replication
from streaming.base.dataset import StreamingDataset
from streaming.base.stream import Stream

__all__ = [
    "ConcatenatedSequenceCollatorWrapper",
    "PackedTextDataset",
    "StreamingTextDataset",
    "build_streams",
    "build_text_dataloader",
]

log = logging.getLogger(__name__)

BATCH_TEXTS, BATCH_CHARACTERS = 256, 1_000_000
MANY_TIMES = 10


class StreamingTextDataset(TextRows, StreamingDataset):
    """Gives the samples of MDS shards as rows of token ids.

    A sample holds ``tokens`` (an array, or raw bytes of ``token_encoding_type``), of which the
    first ``max_seq_len`` are taken, or ``text``, which is tokenised and padded to ``max_seq_len``.
    Beside ``tokens`` there may be ``document_lengths``, as packing by best fit writes them: the row
    then has an ``attention_mask``, 0 behind its last document, and ``sequence_id``, the number of
    each token's document, -1 at padding.

    Flat token files, Parquet, JSONL and other rows are read like MDS; see ``docs/data.md``.

    A subclass whose samples are something else overrides ``make_row``.

    Args:
        tokenizer: Tokenises ``text`` samples.
        max_seq_len: Tokens of a row at most.
        token_encoding_type: Number type of token ids that were written as raw bytes, or
            into flat files.
        streams: The streams to mix, instead of ``remote`` and ``local``.
        remote: Where the shards are.
        local: Where the shards are, or are kept once downloaded.
        split: The subfolder to take.
        shuffle: Whether each epoch has an order of its own.
        batch_size: Samples of a batch on one device.
        **kwargs: Every other argument of :class:`streaming.StreamingDataset`.
    """

    own_options = ("max_seq_len", "token_encoding_type")
    taken_columns: tuple[str, ...] = ("text", "tokens", LENGTHS_COLUMN)
    """The columns that ``make_row`` reads; none for all."""

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
        check_token_encoding_type(token_encoding_type)
        self.tokenizer, self.max_seq_len = tokenizer, max_seq_len
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
            max_seq_len=max_seq_len,
            token_encoding_type=token_encoding_type,
            **kwargs,
        )

    def _set_shards(self) -> None:
        super()._set_shards()
        for shard in self.shards:
            if shard.options:
                shard.expect(self.taken_columns, self._last_token + 1)

    def get_item(self, sample_id: int, retry: int = 7) -> Any:
        """The row of this number.

        Raises:
            RuntimeError: The sample has no text and no tokens, or texts cannot be padded.
            ValueError: What it has is neither; the text names the file and the row in it.
        """
        sample = super().get_item(sample_id, retry)
        try:
            return self.make_row(sample, sample_id)
        except (RuntimeError, ValueError) as error:
            kind = RuntimeError if isinstance(error, RuntimeError) else ValueError
            raise kind(f"{place_of(self, sample_id)}: {error}") from error


class PackedTextDataset(PackedDataset, StreamingTextDataset):
    """Gives the samples of shards, documents of any length, packed into rows by best fit.

    Documents longer than a row are split into full rows and a remainder. Texts are tokenised when
    the plan is made, and again when they are read. Around each is what the tokenizer itself adds,
    or ``bos_text`` and ``eos_text``, once; tokens are taken as they are.

    Args:
        tokenizer: Tokenises ``text`` samples, and pads.
        max_seq_len: Tokens of a row.
        token_encoding_type: Number type of token ids that were written as raw bytes.
        bos_text: Text of the token before each text.
        eos_text: Text of the token behind each text.
        **kwargs: Every other argument of :class:`StreamingTextDataset`.

    Raises:
        ValueError: Nothing separates texts, or they are no documents of any length.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_seq_len: int,
        token_encoding_type: str = "int64",
        bos_text: str = "",
        eos_text: str = "",
        **kwargs: Any,
    ) -> None:
        self._bos_text, self._eos_text = bos_text or "", eos_text or ""
        self._separators: Separators | None = None
        reader = f"{token_encoding_type} {self._bos_text!r} {self._eos_text!r}"
        super().__init__(
            packing=Packing(
                max_seq_len,
                find_padding(tokenizer),
                "split",
                reader=f"{reader} {tokenizer_fingerprint(tokenizer)}",
            ),
            row_of=self._document,
            tokenizer=tokenizer,
            max_seq_len=max_seq_len,
            token_encoding_type=token_encoding_type,
            **kwargs,
        )
        if self._separators is not None and self._world.is_leader:
            self._warn_of_long_texts()

    def _check_samples(self) -> None:
        check_columns(self, self.token_encoding_type)
        firsts = [self.shards[first] for first in self.shard_offset_per_stream]
        for shard in firsts:
            if "max_seq_len" in shard.options:
                raise ValueError(
                    f"packing has no effect on the flat tokens of {shard.folder}, whose samples "
                    "are rows of max_seq_len already. Remove it; eos_token_id tells the documents "
                    "of a row apart."
                )
        if any("text" in columns_of(shard) for shard in firsts):
            self._separators = find_separators(self.tokenizer, self._bos_text, self._eos_text)
        elif self._bos_text or self._eos_text:
            raise ValueError(
                "bos_text and eos_text have no effect on samples of tokens. Leave them out."
            )

    def _content(self, sample: Mapping[str, Any]) -> str | NDArray[Any]:
        if LENGTHS_COLUMN in sample:
            raise ValueError(
                "the sample is a packed row already (it has document_lengths). Remove packing from "
                "the settings of the data set."
            )
        return text_of(sample) if "text" in sample else self.ids_of(sample["tokens"])

    def _document(self, sample: Mapping[str, Any]) -> Row:
        content = self._content(sample)
        is_text = isinstance(content, str)
        return {"input_ids": self._ids_of_texts([content])[0] if is_text else content}

    def _ids_of_texts(self, texts: list[str]) -> list[list[int]]:
        assert self._separators is not None
        before, after = list(self._separators.before), list(self._separators.after)
        found = self.tokenizer(
            texts,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        return [
            before * (ids[: len(before)] != before)
            + ids
            + after * (ids[len(ids) - len(after) :] != after)
            for ids in found
        ]

    def _sizes(self, places: Iterator[Place]) -> Iterator[int]:
        """Tokens of each sample; texts are tokenised many at a time."""
        texts: list[str] = []
        characters = 0
        for shard, offset in places:
            content = self._apply(self._content, shard, offset)
            if not isinstance(content, str):
                yield len(content)
                continue
            texts.append(content)
            characters += len(content)
            if characters >= BATCH_CHARACTERS or len(texts) == BATCH_TEXTS:
                yield from map(len, self._ids_of_texts(texts))
                texts, characters = [], 0
        if texts:
            yield from map(len, self._ids_of_texts(texts))

    def _warn_of_long_texts(self) -> None:
        sizes = np.concatenate([index.lengths for index in self._indexes])
        times = float((sizes * -(-sizes // self.max_seq_len)).sum() / sizes.sum())
        if times >= MANY_TIMES:
            log.warning(
                "The texts are so much longer than max_seq_len=%d that an epoch tokenises them up "
                "to %.0f times, once for each of their rows. Prepare them with --packing best_fit.",
                self.max_seq_len,
                times,
            )


def build_streams(streams: Mapping[str, Mapping[str, Any]] | None) -> list[Stream]:
    """Builds the streams that a recipe describes by name."""
    return [
        build_rows_stream(settings) if settings.get("hf_name") else Stream(**settings)
        for settings in (streams or {}).values()
    ]


PACKING_KEYS = ("bos_text", "eos_text")

DATASET_KEYS = (
    set(inspect.signature(StreamingDataset).parameters)
    | set(inspect.signature(StreamingTextDataset).parameters)
    | {
        "eos_token_id",
        "bos_token_id",
        "mlm_probability",
        "override_eos_token_id_mismatch_error",
        "override_bos_token_id_mismatch_error",
        "packing",
        *PACKING_KEYS,
        "seq_parallel_replication",
        *HF_KEYS,
    }
) - {"tokenizer", "batch_size", "kwargs", "self"}

_ROWS_KEYS = {*HF_KEYS, "split", "columns", "local", "remote", "streams"}

COLLATOR_KEYS = ("eos_token_id", "bos_token_id", "mlm_probability")


def _dataset_class(dataset: Mapping[str, Any]) -> type[StreamingTextDataset]:
    packing = dataset.get("packing")
    others = PACKING_KEYS if packing is None else ("eos_token_id", "bos_token_id")
    if unused := [key for key in others if dataset.get(key) not in (None, "")]:
        why = (
            "it is for packing: best_fit, which tokenises texts here"
            if packing is None
            else f"packing={packing!r} knows each document by itself, whatever tokens it holds"
        )
        raise ValueError(f"{unused[0]} has no effect: {why}. Leave it out.")
    if packing is None:
        return StreamingTextDataset
    if packing == "best_fit":
        return PackedTextDataset
    raise ValueError(
        f"packing={packing!r} must be best_fit, which packs documents of any length, or left out."
    )


@declares_keys(
    {
        "dataset": DATASET_KEYS,
        "dataset.streams.*": {*inspect.signature(Stream).parameters, *HF_KEYS},
    }
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
            ``streams`` by name, or ``hf_name`` and ``hf_kwargs`` for a Hugging Face data set;
            ``eos_token_id`` or ``bos_token_id`` to tell documents of one row apart
            (``sequence_id``), which rows packed by best fit are by themselves;
            ``packing: best_fit`` to pack samples of any length here, with ``bos_text`` or
            ``eos_text`` around texts if the tokenizer adds none; and every setting of
            :class:`streaming.StreamingDataset`.
        drop_last: As of :class:`LoaderOptions`, and so are the others.
        num_workers: Worker processes of the loader.
        pin_memory: Pins batches for a faster copy to the GPU.
        prefetch_factor: Batches that each worker keeps ready.
        persistent_workers: Keeps the workers from epoch to epoch.
        timeout: Seconds to wait for a worker; 0 waits.

    Raises:
        TypeError: A setting of the data set is unknown.
        ValueError: A setting is wrong or has no effect, or a column is of another kind.
        RuntimeError: There is no ``text`` and no ``tokens`` column.
        NotEnoughDatasetSamplesError: There is less than one batch, and it is to be dropped.
    """
    if tokenizer is None:
        raise ValueError("Tokenizer is required for text dataloader")
    dataset = dict(dataset)
    dataset_class = _dataset_class(dataset)
    replication, dataset_batch_size = validate_dataset_replication(
        dataset_cfg=dataset, tokenizer=tokenizer, device_batch_size=device_batch_size
    )
    collator, dataloader_batch_size = build_collator(
        "text_collator", {"dataset": dataset}, tokenizer, dataset_batch_size
    )
    check_dataset_keys(dataset, DATASET_KEYS)
    options = LoaderOptions(
        drop_last, num_workers, pin_memory, prefetch_factor, persistent_workers, timeout
    )
    if is_streamed(dataset):
        rows = load_rows(dataset["hf_name"], dataset.get("split"), dataset["hf_kwargs"])
        loader = DataLoader(
            StreamedTextDataset(rows, tokenizer, dataset),
            **options.arguments(collator, dataloader_batch_size),
        )
        return build_data_spec(loader, dataset)
    unwanted = {*COLLATOR_KEYS, "packing", *(() if dataset.get("packing") else PACKING_KEYS)}
    arguments = {key: value for key, value in dataset.items() if key not in unwanted}
    if dataset.get("hf_name") is not None:
        source = {key: arguments.pop(key) for key in _ROWS_KEYS & arguments.keys()}
        dataset["streams"] = {"": source}
    arguments["streams"] = build_streams(dataset.get("streams")) or None
    arguments["replication"] = replication if replication > 1 else None
    text_dataset = dataset_class(tokenizer=tokenizer, batch_size=dataloader_batch_size, **arguments)
    check_columns(text_dataset, text_dataset.token_encoding_type)
    loader = options.loader(text_dataset, collator, dataloader_batch_size, dataset)
    return build_data_spec(loader, dataset)
