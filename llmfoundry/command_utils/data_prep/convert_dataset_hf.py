"""``data_prep convert_dataset_hf``: C4 or the Pile from the hub into shards."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llmfoundry.command_utils.data_prep._json_rows import text_of
from llmfoundry.command_utils.data_prep._rows import (
    Output,
    concatenation,
    unwritten,
    write_dataset,
)

__all__ = ["CONSTS", "convert_dataset_hf", "convert_dataset_hf_from_args"]


@dataclass(frozen=True)
class SplitConstants:
    """One of our splits: where it comes from and how much of it is taken."""

    hf_split: str
    folder_split: str
    raw_samples: int
    truncated_samples: int | None = None


def _splits(train: int, validation: int, *more: SplitConstants) -> dict[str, SplitConstants]:
    every = (
        SplitConstants("train", "train", train),
        SplitConstants("train", "train_small", 100_000, 100_000),
        SplitConstants("validation", "val", validation),
        SplitConstants("validation", "val_small", 10_000, 10_000),
        SplitConstants("validation", "val_xsmall", 3_000, 3_000),
        *more,
    )
    return {each.folder_split: each for each in every}


CONSTS: dict[str, dict[str, SplitConstants]] = {
    "allenai/c4": _splits(
        364_868_892, 364_608, SplitConstants("validation", "val_xxsmall", 100, 100)
    ),
    "the_pile": _splits(210_607_728, 214_670),
}
"""Data set -> our split -> what it is."""


def convert_dataset_hf(
    dataset: str,
    data_subset: str | None,
    splits: list[str],
    out_root: str,
    compression: str | None,
    concat_tokens: int | None,
    tokenizer: str | None,
    tokenizer_kwargs: dict[str, Any],
    bos_text: str,
    eos_text: str,
    no_wrap: bool,
    num_workers: int | None,
    packing: str = "concat",
    output_format: str = "mds",
) -> None:
    """Writes splits of a hub data set as shards, tokenised if ``concat_tokens`` is given.

    A call that was killed goes on, when it is repeated, with the first split that is not whole.

    Args:
        dataset: ``allenai/c4`` or ``the_pile``.
        data_subset: The data set's configuration, such as ``en``.
        splits: Our splits, such as ``train_small`` and ``val``; each becomes a folder.
        out_root: The folder of those folders, here or in a store.
        compression: Compression of the shards, such as ``zstd``.
        concat_tokens: Tokens of a row; None writes the texts as they are.
        tokenizer: A folder or hub name; needed with ``concat_tokens``.
        tokenizer_kwargs: Arguments of the tokenizer.
        bos_text: Text of the token that starts each document.
        eos_text: Text of the token that ends each document.
        no_wrap: Throws away what a full row leaves of its documents.
        num_workers: Processes that tokenise, all CPUs if None; the result does not depend on it.
        packing: ``concat`` joins texts and cuts them into rows; ``best_fit`` fits texts into padded
            rows and cuts only those that are longer than one.
        output_format: ``mds`` or ``tokens``, flat files of token ids.

    Raises:
        OutputFolderNotEmptyError: A split's folder holds something else, or all are there.
        InvalidDatasetError: A row has no ``text``.
    """
    if dataset not in CONSTS:
        raise ValueError(
            f"Constants for dataset {dataset!r} not found. Currently only {sorted(CONSTS)} are "
            "supported; write others as JSON and use convert_dataset_json."
        )
    unknown = [split for split in splits if split not in CONSTS[dataset]]
    if unknown:
        raise KeyError(f"Constants not defined for split {unknown}; there are {[*CONSTS[dataset]]}")
    shared = {
        "dataset": dataset,
        "data_subset": data_subset,
        "compression": compression,
        "concat_tokens": concat_tokens,
        "tokenizer": tokenizer,
        "tokenizer_kwargs": tokenizer_kwargs,
        "bos_text": bos_text,
        "eos_text": eos_text,
        "no_wrap": no_wrap,
        "packing": packing,
        "format": output_format,
    }
    outputs: dict[str, Output] = {}
    for split in splits:
        folder = os.path.join(out_root, CONSTS[dataset][split].folder_split)
        outputs[split] = Output(folder, compression, {**shared, "split": split}, output_format)
    missing = unwritten([*outputs.values()])
    how = concatenation(
        concat_tokens,
        tokenizer,
        tokenizer_kwargs,
        bos_text,
        eos_text,
        no_wrap,
        num_workers,
        packing,
    )
    for split, output in outputs.items():
        if output not in missing:
            continue
        source = CONSTS[dataset][split]
        texts = _hub_texts(dataset, data_subset, source.hf_split)
        write_dataset(
            output,
            ([text] for text in texts),
            how,
            f"{dataset}, {source.hf_split}",
            source.truncated_samples,
        )


def _hub_texts(dataset: str, data_subset: str | None, split: str) -> Iterator[str]:
    import datasets

    rows = datasets.load_dataset(path=dataset, name=data_subset, split=split, streaming=True)
    for number, row in enumerate(rows, start=1):
        yield text_of(row, f"{dataset}, {split}, row {number}")


def convert_dataset_hf_from_args(
    dataset: str,
    data_subset: str | None,
    splits: list[str],
    out_root: str,
    compression: str | None,
    concat_tokens: int | None,
    tokenizer: str | None,
    tokenizer_kwargs: str | None,
    bos_text: str | None,
    eos_text: str | None,
    no_wrap: bool,
    num_workers: int | None,
    packing: str = "concat",
    output_format: str = "mds",
) -> None:
    """:func:`convert_dataset_hf` with a command line's values: unset is None, kwargs are JSON."""
    convert_dataset_hf(
        dataset=dataset,
        data_subset=data_subset,
        splits=splits,
        out_root=out_root,
        compression=compression,
        concat_tokens=concat_tokens,
        tokenizer=tokenizer,
        tokenizer_kwargs=json.loads(tokenizer_kwargs) if tokenizer_kwargs else {},
        bos_text=bos_text or "",
        eos_text=eos_text or "",
        no_wrap=no_wrap,
        num_workers=num_workers,
        packing=packing,
        output_format=output_format,
    )
