"""The ``finetuning`` loader: rows of answers to learn, from the hub, files or MDS shards."""

import inspect
from collections.abc import Mapping
from typing import Any

from composer.core.data_spec import DataSpec
from llmfoundry.builders.declared_keys import declares_keys
from llmfoundry.data.finetuning.collation import COLLATOR_KEYS, PACKING_KEYS, build_collate_fn
from llmfoundry.data.finetuning.packed_rows import PackedFinetuningDataset
from llmfoundry.data.finetuning.preprocessing import dataset_constructor
from llmfoundry.data.finetuning.stitching import TargetPolicy, validate_target_settings
from llmfoundry.data.finetuning.streaming_dataset import StreamingFinetuningDataset
from llmfoundry.data.loader_options import LoaderOptions, check_dataset_keys
from llmfoundry.data.text_data import build_streams
from llmfoundry.data.utils import build_collator, build_data_spec, validate_dataset_replication
from llmfoundry.tokenizers.dates import as_date, tells_date
from llmfoundry.utils.exceptions import MissingHuggingFaceURLSplitError
from streaming.base.dataset import StreamingDataset
from streaming.base.rows import RowsStream
from streaming.base.stream import Stream

__all__ = ["build_collate_fn", "build_finetuning_dataloader"]

HF_KEYS = {"hf_name", "hf_kwargs", "preprocessing_fn", "safe_load"}
SHARED_KEYS = {
    *COLLATOR_KEYS,
    *PACKING_KEYS,
    *("split", "shuffle", "shuffle_seed", "replication", "seq_parallel_replication"),
    "date_string",
    *("eos_token_id", "override_eos_token_id_mismatch_error"),
    *("bos_token_id", "override_bos_token_id_mismatch_error"),
}
STREAMING_KEYS = (
    set(inspect.signature(StreamingDataset).parameters)
    | set(inspect.signature(StreamingFinetuningDataset).parameters)
) - {"tokenizer", "batch_size", "kwargs", "self", "packing_ratio"}


@declares_keys(
    {
        "dataset": HF_KEYS | SHARED_KEYS | STREAMING_KEYS,
        "dataset.streams.*": {*inspect.signature(Stream).parameters, "hf_name", "hf_kwargs"},
    }
)
def build_finetuning_dataloader(
    tokenizer: Any,
    device_batch_size: int | float,
    dataset: dict[str, Any],
    num_workers: int,
    drop_last: bool = False,
    pin_memory: bool = True,
    prefetch_factor: int | None = 2,
    persistent_workers: bool = True,
    timeout: int = 0,
) -> DataSpec:
    """Builds the loader of fine-tuning rows.

    Args:
        tokenizer: The tokenizer; where it has no padding token, it pads with its end token.
        device_batch_size: Rows of a batch on this device.
        dataset: The source: ``hf_name`` (a hub name, a folder or file, ``json``, or a remote folder
            of ``{split}.jsonl`` or the like) with ``split``, ``hf_kwargs``, ``preprocessing_fn``
            and ``safe_load``; or MDS shards: ``local``, ``remote`` and ``split``, or ``streams`` by
            name, with every setting of :class:`streaming.StreamingDataset`. And ``max_seq_len``,
            ``decoder_only_format``, ``shuffle``, ``target_prompts`` (``none``, ``all``,
            ``length>=N``), ``target_responses`` (``last``, ``all``), ``packing: best_fit`` or, as
            LLM Foundry packed, ``packing_ratio`` and ``max_leftover_bins_to_keep``;
            ``allow_pad_trimming``, ``pad_to_longest``, ``batch_metadata``. ``date_string``,
            such as ``26 Jul 2025``, is what chat templates write as today; without it, a run that
            goes on another day may see other tokens.
        num_workers: As of :class:`LoaderOptions`, and so are the others.
        drop_last: Leaves out a last batch that is not full.
        pin_memory: Pins batches for a faster copy to the GPU.
        prefetch_factor: Batches that each worker keeps ready.
        persistent_workers: Keeps the workers from epoch to epoch.
        timeout: Seconds to wait for a worker.

    Raises:
        ValueError: Sources exclude each other, or a setting is missing or wrong.
        TypeError: A setting is unknown.
    """
    if tokenizer is None:
        raise ValueError("Tokenizer is required for finetuning dataloader.")
    options = LoaderOptions(
        drop_last, num_workers, pin_memory, prefetch_factor, persistent_workers, timeout
    )
    cfg = dict(dataset)
    for key, default in (("target_prompts", "none"), ("target_responses", "last")):
        if cfg.get(key) is None:
            cfg[key] = default
    is_streaming = _check_source(cfg)
    _check_settings(cfg, is_streaming)
    _check_date(cfg.get("date_string"), tokenizer)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    replication, dataset_batch_size = validate_dataset_replication(
        dataset_cfg=cfg, tokenizer=tokenizer, device_batch_size=device_batch_size
    )
    loader_cfg = {"name": "finetuning", "dataset": cfg, "num_workers": num_workers}
    loader_cfg |= {"drop_last": drop_last, "timeout": timeout}
    collate, batch_size = build_collator(
        "finetuning_collator", loader_cfg, tokenizer, dataset_batch_size
    )
    settings = {key: value for key, value in cfg.items() if key in STREAMING_KEYS}
    settings["replication"] = replication if replication > 1 else None
    if is_streaming:
        settings["streams"] = build_streams(cfg.get("streams")) or None
    else:
        rows = _tokenized_rows(cfg, tokenizer)
        settings["streams"] = [RowsStream(rows, name=f"{cfg['hf_name']}, split {cfg['split']}")]
        settings.pop("split")
    settings |= {"tokenizer": tokenizer, "batch_size": batch_size}
    policy = TargetPolicy(
        cfg["max_seq_len"],
        cfg["target_prompts"],
        cfg["target_responses"],
        cfg["decoder_only_format"],
    )
    if cfg.get("packing") is not None:
        del settings["max_seq_len"]
        shards: StreamingFinetuningDataset = PackedFinetuningDataset(policy=policy, **settings)
    else:
        if batch_size != dataset_batch_size:
            settings["packing_ratio"] = batch_size / dataset_batch_size
        shards = dataset_constructor.build_from_streaming(**settings)
        shards.policy = policy if is_streaming else None  # Other rows are checked already.
    return build_data_spec(options.loader(shards, collate, batch_size, cfg), cfg)


def _check_source(cfg: Mapping[str, Any]) -> bool:
    """Refuses sources that exclude each other; says whether the source is MDS shards."""
    given = {key for key, value in cfg.items() if value not in (None, {}, [])}
    hf = given & HF_KEYS - ({"safe_load"} if not cfg.get("safe_load") else set())
    shards = given & {"remote", "local"}
    streams = given & {"streams"}
    for first, second in ((hf, shards), (hf, streams), (streams, shards)):
        if first and second:
            raise ValueError(
                f"{sorted(first)} and {sorted(second)} name different sources of data. Give one: "
                "hf_name (with hf_kwargs, preprocessing_fn, safe_load), local and remote, or "
                "streams."
            )
    if "remote" in shards and "local" not in shards:
        raise ValueError(
            "Using a streaming dataset requires setting both `remote` and `local`, but local is "
            "not set."
        )
    if shards or streams:
        return True
    if "hf_name" not in given:
        raise ValueError(
            "The data set names no source. Set one of hf_name, local (with remote), or streams."
        )
    if "split" not in given:
        raise MissingHuggingFaceURLSplitError()
    return False


def _check_settings(cfg: Mapping[str, Any], is_streaming: bool) -> None:
    check_dataset_keys(cfg, SHARED_KEYS | (STREAMING_KEYS if is_streaming else HF_KEYS))
    required = ["max_seq_len", "decoder_only_format"] + ["shuffle"] * (not is_streaming)
    if missing := [key for key in required if cfg.get(key) is None]:
        raise ValueError(f"The data set needs {' and '.join(missing)}: add it to dataset.")
    validate_target_settings(
        str(cfg["target_prompts"]).lower(),
        str(cfg["target_responses"]).lower(),
        cfg["decoder_only_format"],
    )


def _check_date(date_string: str | None, tokenizer: Any) -> None:
    if date_string is None:
        return
    if not tells_date(tokenizer.chat_template):
        raise ValueError(
            f"{date_string=} has no effect: the tokenizer's chat template writes no date. Leave it "
            "out."
        )
    as_date(date_string)  # refuses what is no date


def _tokenized_rows(cfg: Mapping[str, Any], tokenizer: Any) -> Any:
    preprocess = cfg.get("preprocessing_fn")
    if isinstance(preprocess, Mapping):
        function = dataset_constructor.get_preprocessing_fn_from_dict(preprocess)
    else:
        function = dataset_constructor.get_preprocessing_fn_from_str(preprocess, cfg["hf_name"])
    names = ("target_prompts", "target_responses", "hf_kwargs", "safe_load", "date_string")
    return dataset_constructor.build_from_hf(
        dataset_name=cfg["hf_name"],
        split=cfg["split"],
        max_seq_len=cfg["max_seq_len"],
        preprocessing_fn=function,
        tokenizer=tokenizer,
        decoder_only_format=cfg["decoder_only_format"],
        **{key: cfg[key] for key in names if key in cfg},
    )
