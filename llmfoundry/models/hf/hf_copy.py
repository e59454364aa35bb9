"""A copy of the model that is trained, on rank 0 and in the host's memory, however it is spread."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from composer.checkpoint.content import storages_of_run
from composer.core.model_state import get_model_state
from composer.core.state import State
from composer.models.adapters import has_adapters, maybe_get_underlying_model
from composer.models.hf_metadata import defining_class
from composer.utils import dist
from composer.utils.misc import unwrap_model
from llmfoundry.models.hf.adapters import restore_adapters
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.utils.meta_init_context import init_empty_weights

__all__ = ["copy_of_model", "copy_of_weights"]


def copy_of_weights(
    state: State, dtype: torch.dtype, with_base: bool = False
) -> dict[str, torch.Tensor]:
    """Returns copies of the whole weights on rank 0, and nothing on other ranks. All ranks call it.

    Args:
        state: The state of a run whose model is a ``HuggingFaceModel``.
        dtype: What floating-point weights are cast to.
        with_base: Whether the frozen weights under adapters come too.
    """
    with _saves_adapters_only(unwrap_model(state.model), not with_base):
        weights = get_model_state(state.model, full=True, cpu_offload=True)
    return _copied(weights, dtype, storages_of_run(state)) if dist.get_global_rank() == 0 else {}


def copy_of_model(trained: Any, config: Any, weights: dict[str, torch.Tensor]) -> Any:
    """Returns a transformers model like the one that is trained, which is left as it is.

    Random generators stay as they are, too.

    Args:
        trained: The transformers model, with or without adapters.
        config: The configuration to build the copy from; it becomes the copy's own.
        weights: The copy's weights; a base under adapters is on meta where they are missing.

    Raises:
        RuntimeError: The weights do not fit the configuration.
    """
    inner = maybe_get_underlying_model(trained)
    with torch.random.fork_rng(devices=[]):
        model = _build(defining_class(inner), config)
        if has_adapters(trained):
            adapters = copy.deepcopy(trained.peft_config[trained.active_adapter])
            model = restore_adapters(model, adapters, weights)
        else:
            _load(model, weights)
    if getattr(inner, "generation_config", None) is not None:
        maybe_get_underlying_model(model).generation_config = copy.deepcopy(inner.generation_config)
    return model.eval()


@contextmanager
def _saves_adapters_only(model: Any, answer: bool) -> Iterator[None]:
    before = model.should_save_peft_only
    model.should_save_peft_only = answer
    try:
        yield
    finally:
        model.should_save_peft_only = before


def _copied(
    weights: dict[str, Any], dtype: torch.dtype, in_training: set[int]
) -> dict[str, torch.Tensor]:
    """Casts the weights, and copies those that training goes on to change; uses them up."""
    copies = {}
    for name in list(weights):
        value = weights.pop(name)
        wanted = dtype if value.is_floating_point() else value.dtype
        is_shared = value.untyped_storage().data_ptr() in in_training
        copies[name.removeprefix("model.")] = value.detach().to(wanted, copy=is_shared)
    return copies


def _build(kind: type, config: Any) -> Any:
    """Builds a model whose parameters are on meta, and whose buffers are real."""
    is_mpt = isinstance(config, MPTConfig)
    if is_mpt:
        config.init_device = "meta"
    with init_empty_weights():
        model = kind(config)
    if is_mpt:
        config.init_device = "cpu"
    return model


def _load(model: Any, weights: dict[str, torch.Tensor]) -> None:
    found = model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    missing = [name for name, each in model.named_parameters() if each.is_meta]
    if missing or found.unexpected_keys:
        raise RuntimeError(
            f"The weights do not fit {type(model).__name__}. Missing: {missing[:3] or 'none'}. Not "
            f"expected: {found.unexpected_keys[:3] or 'none'}. Does transform_config change shapes?"
        )
