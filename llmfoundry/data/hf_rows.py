"""Hugging Face datasets as sources of the text loader: by number, or streamed."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import IterableDataset

from composer.utils import dist
from llmfoundry.data.text_rows import TextRows
from streaming.base.format.columns import Columns
from streaming.base.rows import RowsStream

__all__ = ["HF_KEYS", "StreamedTextDataset", "build_rows_stream", "is_streamed", "load_rows"]

HF_KEYS = ("hf_name", "hf_kwargs")

_STREAM_KEYS = {*HF_KEYS, "split", "proportion", "repeat", "choose", "columns"}
_STREAMED_KEYS = {*HF_KEYS, "split", "columns", "max_seq_len", "shuffle", "shuffle_seed"}
_STREAMED_KEYS |= {"shuffle_block_size", "eos_token_id", "bos_token_id", "mlm_probability"}
_STREAMED_KEYS |= {f"override_{kind}_token_id_mismatch_error" for kind in ("eos", "bos")}


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}


def is_streamed(dataset_cfg: Mapping[str, Any]) -> bool:
    """Whether the settings of a data set ask for a stream of rows, which has no row by number."""
    return bool((dataset_cfg.get("hf_kwargs") or {}).get("streaming"))


def load_rows(hf_name: str, split: str | None, hf_kwargs: Mapping[str, Any] | None) -> Any:
    """Loads a data set of the Hugging Face Hub, or a folder that ``save_to_disk`` wrote.

    Args:
        hf_name: Its name, a kind of file such as ``json`` (with ``data_files``), or a folder.
        split: Its split.
        hf_kwargs: Further arguments of ``datasets.load_dataset``.

    Raises:
        ValueError: It has several splits, and none is chosen.
    """
    import datasets

    kwargs = dict(hf_kwargs or {})
    if split is not None and kwargs.setdefault("split", split) != split:
        raise ValueError(f"split={split!r} and hf_kwargs.split={kwargs['split']!r}: give one.")
    if os.path.exists(os.path.join(hf_name, "dataset_info.json")):
        if kwargs:
            raise ValueError(
                f"{hf_name} was written by save_to_disk, where {sorted(kwargs)} has no effect."
            )
        return datasets.load_from_disk(hf_name)
    rows = datasets.load_dataset(hf_name, **kwargs)
    if isinstance(rows, dict):
        raise ValueError(f"{hf_name} has the splits {sorted(rows)}: set `split` to one of them.")
    return rows


def build_rows_stream(settings: Mapping[str, Any]) -> RowsStream:
    """A stream of the settings with ``hf_name``, of a data set or of one of its streams."""
    settings = _given(settings)
    if unknown := sorted(settings.keys() - _STREAM_KEYS):
        raise ValueError(f"{unknown} has no effect beside hf_name. Leave it out.")
    rest = {key: settings[key] for key in settings.keys() - {*HF_KEYS, "split"}}
    rows = load_rows(settings["hf_name"], settings.get("split"), settings.get("hf_kwargs"))
    if not hasattr(rows, "__len__"):
        raise ValueError(
            "hf_kwargs.streaming gives rows in one order only, and cannot be mixed with other "
            "streams. Leave it out, or make this the only source."
        )
    return RowsStream(rows, name=settings["hf_name"], **rest)


class StreamedTextDataset(TextRows, IterableDataset[Any]):
    """Gives the rows that ``datasets`` streams, with a weaker promise than all other sources.

    The samples of a run, and those of a run that was resumed, are the same only under the same
    number of ranks, of workers, and batch size; a resumed run reads (and drops) what came before.
    Every epoch has the same order. Shuffling mixes ``shuffle_block_size`` rows (default 10,000),
    and shards if there are several. Ranks share out whole shards, if their number is a multiple of
    that of the ranks, or else read all and take turns.

    (The state that ``datasets`` itself offers is not used: shuffled, it loses rows; each rank and
    worker has another; and it does not fit another number of them either.)

    Args:
        rows: A ``datasets.IterableDataset``.
        tokenizer: Tokenises ``text`` samples.
        dataset_cfg: The settings of the data set.
    """

    token_encoding_type = "int64"

    def __init__(self, rows: Any, tokenizer: Any, dataset_cfg: Mapping[str, Any]) -> None:
        from datasets.distributed import split_dataset_by_node

        dataset_cfg = _given(dataset_cfg)
        if unknown := sorted(dataset_cfg.keys() - _STREAMED_KEYS):
            raise ValueError(f"{unknown} has no effect with hf_kwargs.streaming. Leave it out.")
        self.tokenizer, self.max_seq_len = tokenizer, dataset_cfg["max_seq_len"]
        self._columns, self._name = Columns(dataset_cfg.get("columns")), dataset_cfg["hf_name"]
        if dataset_cfg.get("shuffle"):
            size = int(dataset_cfg.get("shuffle_block_size") or 10_000)
            rows = rows.shuffle(seed=dataset_cfg.get("shuffle_seed", 9176), buffer_size=size)
        self._rows = split_dataset_by_node(rows, dist.get_global_rank(), dist.get_world_size())

    def __iter__(self) -> Iterator[torch.Tensor | dict[str, Any]]:
        for number, row in enumerate(self._rows):
            if missing := self._columns.missing(row):
                raise ValueError(f"{self._name} has no column {missing!r}, only {sorted(row)}.")
            try:
                yield self.make_row(self._columns.select(row), number)
            except (RuntimeError, ValueError) as error:
                raise ValueError(
                    f"row {number} of {self._name} (of this worker): {error}"
                ) from error
