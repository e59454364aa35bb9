"""The collator that a fine-tuning loader's settings ask for, and how many rows it is given."""

from collections.abc import Callable, Mapping
from typing import Any

from llmfoundry.data.finetuning.collator import Seq2SeqFinetuningCollator
from llmfoundry.data.finetuning.packed_rows import stack_packed_rows
from llmfoundry.data.packing import BinPackCollator, auto_packing_ratio
from llmfoundry.data.token_counts import (
    LossGeneratingTokensCollatorWrapper,
    get_tokens_per_batch_func,
)

__all__ = ["COLLATOR_KEYS", "PACKING_KEYS", "build_collate_fn", "get_finetuning_collator"]

COLLATOR_KEYS = (
    *("max_seq_len", "decoder_only_format", "target_responses", "target_prompts"),
    *("allow_pad_trimming", "batch_metadata", "pad_to_longest"),
)
PACKING_KEYS = ("packing", "packing_ratio", "max_leftover_bins_to_keep")
# What has no effect on rows that are packed ahead: they are full, and made by the data set.
NOT_OF_PACKED_ROWS = (
    *("packing_ratio", "max_leftover_bins_to_keep"),
    *("allow_pad_trimming", "pad_to_longest", "batch_metadata"),
)

Collate = Callable[[list[Any]], dict[str, Any]]


def build_collate_fn(
    dataloader_cfg: Mapping[str, Any], tokenizer: Any, device_batch_size: int
) -> tuple[Collate, int]:
    """Builds what makes batches, and says how many examples it makes one of.

    Args:
        dataloader_cfg: The loader's settings, with its ``name`` and ``dataset``.
        tokenizer: The tokenizer.
        device_batch_size: Rows of a batch.

    Raises:
        ValueError: ``packing`` or ``packing_ratio`` is not what it can be, or a setting has no
            effect beside it.
        NotImplementedError: Packing is asked for an encoder-decoder.
    """
    cfg = dataloader_cfg["dataset"]
    count = get_tokens_per_batch_func(decoder_only=cfg["decoder_only_format"])
    if cfg.get("packing") is not None:
        _check_packing(cfg)
        return LossGeneratingTokensCollatorWrapper(stack_packed_rows, count), device_batch_size
    collator = Seq2SeqFinetuningCollator(
        tokenizer, **{key: cfg[key] for key in COLLATOR_KEYS if key in cfg}
    )
    ratio = _packing_ratio(dataloader_cfg, tokenizer, device_batch_size)
    if ratio == 1:
        return LossGeneratingTokensCollatorWrapper(collator, count), device_batch_size
    packer = BinPackCollator(
        collator,
        target_batch_size=device_batch_size,
        max_seq_len=cfg["max_seq_len"],
        pad_token_id=tokenizer.pad_token_id,
        padding_side=tokenizer.padding_side,
        max_leftover_bins_to_keep=cfg.get("max_leftover_bins_to_keep"),
    )
    return LossGeneratingTokensCollatorWrapper(packer, count), int(device_batch_size * ratio)


def _check_packing(cfg: Mapping[str, Any]) -> None:
    if cfg["packing"] != "best_fit":
        raise ValueError(f"packing={cfg['packing']!r} must be best_fit, or left out.")
    if not cfg["decoder_only_format"]:
        raise NotImplementedError(
            "Packing is only implemented for decoder-only formats. Remove packing."
        )
    if idle := [key for key in NOT_OF_PACKED_ROWS if cfg.get(key)]:
        raise ValueError(f"{' and '.join(idle)} has no effect with packing=best_fit. Remove it.")


def _packing_ratio(
    dataloader_cfg: Mapping[str, Any], tokenizer: Any, device_batch_size: int
) -> float:
    cfg = dataloader_cfg["dataset"]
    ratio = cfg.get("packing_ratio")
    if ratio is None:
        if cfg.get("max_leftover_bins_to_keep") is not None:
            raise ValueError(
                "max_leftover_bins_to_keep has been defined, but packing_ratio has not been set. "
                "Please set the latter to turn on packing, or remove the former."
            )
        return 1
    if isinstance(ratio, str):
        if ratio != "auto":
            raise ValueError(f"packing_ratio={ratio!r} must be a number from 1 on, or auto.")
        ratio = auto_packing_ratio(dict(dataloader_cfg), tokenizer, device_batch_size)
    if ratio < 1:
        raise ValueError(f"packing_ratio={ratio} must be at least 1, which is no packing.")
    if ratio > 1 and not cfg["decoder_only_format"]:
        raise NotImplementedError(
            "Packing is only implemented for decoder-only formats. Remove packing_ratio."
        )
    return ratio


def get_finetuning_collator(
    dataloader_cfg: Mapping[str, Any], tokenizer: Any, dataset_batch_size: int
) -> tuple[Collate, int]:
    """The registered ``finetuning_collator``: :func:`build_collate_fn`."""
    return build_collate_fn(dataloader_cfg, tokenizer, dataset_batch_size)
