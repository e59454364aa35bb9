"""Models by the names that a recipe gives them."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch

from composer.models.base import ComposerModel
from llmfoundry import registry
from llmfoundry.utils.registry_utils import construct_from_registry

__all__ = ["MASTER_WEIGHTS_DTYPES", "build_composer_model"]

MASTER_WEIGHTS_DTYPES: dict[str, torch.dtype] = {
    "f16": torch.float16,
    "float16": torch.float16,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
}


def build_composer_model(
    name: str,
    cfg: dict[str, Any],
    tokenizer: Any,
    init_context: AbstractContextManager[Any] | None = None,
    master_weights_dtype: str | None = None,
) -> ComposerModel:
    """Builds a model.

    Args:
        name: A registered model.
        cfg: Its arguments, without the tokenizer.
        tokenizer: The tokenizer, which the model is also given.
        init_context: Entered while the model is built, to put its weights on the meta device.
        master_weights_dtype: Casts the weights after they are built.
    """
    if master_weights_dtype is not None and master_weights_dtype not in MASTER_WEIGHTS_DTYPES:
        raise ValueError(
            f"Invalid master_weights_dtype: {master_weights_dtype}. It is one of "
            f"{sorted(MASTER_WEIGHTS_DTYPES)}, or unset for fp32."
        )
    with init_context or contextlib.nullcontext():
        model = construct_from_registry(
            name=name,
            registry=registry.models,
            pre_validation_function=ComposerModel,
            kwargs={**cfg, "tokenizer": tokenizer},
        )
    if master_weights_dtype is not None:
        model = model.to(dtype=MASTER_WEIGHTS_DTYPES[master_weights_dtype])
    return model
