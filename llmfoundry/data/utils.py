"""What every loader shares: checks of the data settings, collators and the data spec."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import DataLoader

from composer.core.data_spec import DataSpec
from llmfoundry import registry
from llmfoundry.data.finetuning.collation import get_finetuning_collator
from llmfoundry.data.text_collator import (
    ConcatenatedSequenceCollatorWrapper,
    TextCollator,
    masked_language_collator,
)
from llmfoundry.data.token_counts import (
    LossGeneratingTokensCollatorWrapper,
    get_tokens_per_batch_func,
)
from llmfoundry.utils.registry_utils import construct_from_registry

__all__ = [
    "build_collator",
    "build_data_spec",
    "get_data_spec",
    "get_finetuning_collator",
    "get_text_collator",
    "validate_dataset_replication",
    "validate_ds_replication",
]

log = logging.getLogger(__name__)


def validate_ds_replication(
    dataset_cfg: dict[str, Any], tokenizer: Any, device_batch_size: int | float
) -> tuple[int, int]:
    """Checks the settings that all data sets share, and says what one loader has to yield.

    ``max_seq_len`` becomes an int in place, and the ``override_*`` flags are taken out.

    Returns:
        How often each sample is repeated over the ranks, and the samples of a device's batch.
    """
    _check_token_id(dataset_cfg, tokenizer, "eos_token_id")
    _check_token_id(dataset_cfg, tokenizer, "bos_token_id")
    max_seq_len = dataset_cfg.get("max_seq_len")
    if max_seq_len is not None:
        if isinstance(max_seq_len, (bool, str)) or max_seq_len != int(max_seq_len):
            raise ValueError(f"max_seq_len must be a whole number of tokens, got {max_seq_len!r}.")
        if max_seq_len < 1:
            raise ValueError(f"max_seq_len={max_seq_len} must be at least 1 token.")
        dataset_cfg["max_seq_len"] = int(max_seq_len)
    replication = dataset_cfg.pop("seq_parallel_replication", 1) or 1
    if replication > 1:
        raise NotImplementedError(
            f"Sequence parallelism is not supported. Got seq_parallel_replication={replication}; "
            "remove it."
        )
    if isinstance(device_batch_size, float) and not device_batch_size.is_integer():
        raise ValueError(f"device_batch_size should be integer. Got {device_batch_size}.")
    return dataset_cfg.get("replication") or 1, int(device_batch_size)


def _check_token_id(dataset_cfg: dict[str, Any], tokenizer: Any, name: str) -> None:
    """Refuses a boundary token that the tokenizer does not use, unless it is meant."""
    flag = f"override_{name}_mismatch_error"
    override = dataset_cfg.pop(flag, False)
    wanted = dataset_cfg.get(name)
    if wanted is None:
        return
    own = getattr(tokenizer, name, None)
    if wanted == own:
        return
    text = f"Provided {name}={wanted} does not match the {name} of the tokenizer={own}."
    if not override:
        raise ValueError(
            f"{text} To override this error, set the {flag} flag to True in the dataset config "
            "section of the YAML."
        )
    log.warning(text)


def get_data_spec(dl: DataLoader[Any], dataset_cfg: Mapping[str, Any]) -> DataSpec:
    """Wraps a loader with the function that counts its tokens."""
    decoder_only = dataset_cfg.get("decoder_only_format", True)
    return DataSpec(
        dataloader=dl, get_num_tokens_in_batch=get_tokens_per_batch_func(decoder_only=decoder_only)
    )


def get_text_collator(
    dataloader_cfg: Mapping[str, Any], tokenizer: Any, dataset_batch_size: int
) -> tuple[Callable[[list[Any]], dict[str, Any]], int]:
    """Builds what makes batches of text or token rows.

    Args:
        dataloader_cfg: The loader's settings; of its ``dataset``, ``eos_token_id``,
            ``bos_token_id`` and ``mlm_probability`` are used.
        tokenizer: The tokenizer; where it has no padding token, it pads with its end token.
        dataset_batch_size: Samples of a batch.

    Returns:
        The collator and the samples of a batch.
    """
    dataset_cfg = dataloader_cfg.get("dataset", {})
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    probability = dataset_cfg.get("mlm_probability")
    if probability is not None and not 0 < probability <= 1:
        raise ValueError(
            f"mlm_probability={probability} must be above 0 and at most 1: the share of tokens to "
            "hide. Leave it out to predict the next token."
        )
    collator: Callable[[list[Any]], dict[str, Any]] = (
        TextCollator(tokenizer)
        if probability is None
        else masked_language_collator(tokenizer, probability)
    )
    eos_token_id, bos_token_id = dataset_cfg.get("eos_token_id"), dataset_cfg.get("bos_token_id")
    if eos_token_id is not None or bos_token_id is not None:
        collator = ConcatenatedSequenceCollatorWrapper(
            base_collator=collator, eos_token_id=eos_token_id, bos_token_id=bos_token_id
        )
    count = get_tokens_per_batch_func(predicts_next=probability is None)
    return LossGeneratingTokensCollatorWrapper(collator, count), dataset_batch_size


def validate_dataset_replication(
    dataset_cfg: dict[str, Any], tokenizer: Any, device_batch_size: int | float
) -> tuple[int, int]:
    """Asks the registered check (``dataset_replication_validator``) about the data settings."""
    return construct_from_registry(
        name="dataset_replication_validator",
        registry=registry.dataset_replication_validators,
        partial_function=False,
        kwargs={
            "dataset_cfg": dataset_cfg,
            "tokenizer": tokenizer,
            "device_batch_size": device_batch_size,
        },
    )


def build_collator(
    name: str, dataloader_cfg: Mapping[str, Any], tokenizer: Any, dataset_batch_size: int
) -> tuple[Callable[[list[Any]], dict[str, Any]], int]:
    """Builds a registered collator, such as ``text_collator``."""
    return construct_from_registry(
        name=name,
        registry=registry.collators,
        partial_function=False,
        kwargs={
            "dataloader_cfg": dataloader_cfg,
            "tokenizer": tokenizer,
            "dataset_batch_size": dataset_batch_size,
        },
    )


def build_data_spec(dl: DataLoader[Any], dataset_cfg: Mapping[str, Any]) -> DataSpec:
    """Wraps a loader with the registered ``data_spec``."""
    return construct_from_registry(
        name="data_spec",
        registry=registry.data_specs,
        partial_function=False,
        kwargs={"dl": dl, "dataset_cfg": dataset_cfg},
    )
