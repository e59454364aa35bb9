"""Low-rank adapters of the peft package: which weights are theirs, and what checkpoints keep."""

from __future__ import annotations

import contextlib
import copy
import json
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from composer.utils.gradients import as_sharded, local_part
from composer.utils.import_helpers import MissingConditionalImportError
from composer.utils.misc import reshard

__all__ = [
    "add_adapters",
    "count_frozen",
    "describe_adapters",
    "filter_state_dict_peft",
    "has_adapters",
    "has_few_bits",
    "keep_only_adapters_in_checkpoints",
    "make_peft_config",
    "maybe_get_underlying_model",
    "plain_name_of",
    "quiet_peft",
    "sum_of_base",
]


def _peft() -> Any:
    try:
        import peft
    except ImportError as e:
        raise MissingConditionalImportError("peft", "peft") from e
    return peft


def has_adapters(model: Any) -> bool:
    """Says whether it is a model of the peft package."""
    return hasattr(model, "get_base_model") and hasattr(model, "peft_config")


def has_few_bits(model: Any) -> bool:
    """Says whether a transformers model, adapted or not, has quantised weights."""
    return getattr(maybe_get_underlying_model(model), "hf_quantizer", None) is not None


def maybe_get_underlying_model(model: Any) -> Any:
    """Returns the model inside an adapter model, or the model itself."""
    return model.base_model.model if has_adapters(model) else model


def add_adapters(model: Any, peft_config: Any) -> Any:
    """Wraps a transformers model, which is frozen, in trainable adapters.

    Raises:
        ValueError: If they are not low-rank adapters.
    """
    _check_kind(peft_config)
    settings = copy.copy(peft_config)
    name, settings.base_model_name_or_path = peft_config.base_model_name_or_path, None
    with quiet_peft():
        adapted = _peft().get_peft_model(model, settings)
    # peft takes the model's own name, which one that was built, not loaded, does not have.
    settings.base_model_name_or_path = name or settings.base_model_name_or_path
    return adapted


@contextlib.contextmanager
def quiet_peft() -> Iterator[None]:
    """Hushes what peft asks of transformers that is being replaced there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        yield


def _check_kind(peft_config: Any) -> None:
    kind = getattr(peft_config.peft_type, "value", peft_config.peft_type)
    if str(kind).upper() != "LORA":
        raise ValueError(
            f"PEFT type {kind} is not supported, only LORA; pass a peft.LoraConfig as peft_config."
        )


def describe_adapters(model: Any) -> dict[str, Any]:
    """Returns the settings of the active adapter as plain data."""
    with tempfile.TemporaryDirectory() as folder:
        model.peft_config[model.active_adapter].save_pretrained(folder)
        content = json.loads((Path(folder) / "adapter_config.json").read_text(encoding="utf-8"))
    for key, value in content.items():
        if key.endswith("_modules") and isinstance(value, list):
            content[key] = sorted(value)  # it was a set
    return {"file_extension": ".json", "content": content}


def make_peft_config(hf_state: Mapping[str, Any]) -> Any | None:
    """Returns the adapter settings in a checkpoint's part on transformers; None without adapters.

    Args:
        hf_state: What ``HuggingFaceModel.get_metadata`` returned.
    """
    described = hf_state["model"].get("peft_config")
    return None if described is None else _peft().get_peft_config(dict(described["content"]))


def filter_state_dict_peft(
    state_dict: Mapping[str, Any],
    peft_config: Any,
    adapter_name: str = "default",
    remove_adapter_names: bool = True,
) -> dict[str, Any]:
    """Returns those weights that belong to an adapter.

    Args:
        state_dict: Weights by name.
        peft_config: The adapter's settings; its ``bias`` says which biases are trained with it.
        adapter_name: The adapter's name in the names of the weights.
        remove_adapter_names: Names the weights as peft's own files do, without the adapter's name.

    Raises:
        NotImplementedError: If the settings' ``bias`` is none of peft's.
    """
    if peft_config.bias not in ("none", "all", "lora_only"):
        raise NotImplementedError(
            f"bias={peft_config.bias!r} is not one of 'none', 'all' and 'lora_only'."
        )
    own = {key for key in state_dict if _is_of(key, adapter_name)}
    if peft_config.bias == "all":
        own |= {key for key in state_dict if key.rpartition(".")[2] == "bias"}
    elif peft_config.bias == "lora_only":
        for layer in {key.partition("lora_")[0] for key in own if "lora_" in key}:
            own |= {layer + "bias", layer + "base_layer.bias"} & state_dict.keys()
    kept = {key: value for key, value in state_dict.items() if key in own}
    if not remove_adapter_names:
        return kept
    return {_name_in_files(key, adapter_name): value for key, value in kept.items()}


def _name_in_files(key: str, adapter_name: str) -> str:
    # Magnitudes of DoRA were parameters once, and are saved as if they still were.
    key = key.replace(f".lora_magnitude_vector.{adapter_name}.weight", ".lora_magnitude_vector")
    return key.replace(f".modules_to_save.{adapter_name}", "").replace(f".{adapter_name}", "")


def _is_of(key: str, adapter_name: str) -> bool:
    parts = key.split(".")
    own = any(part.startswith(("lora_", "modules_to_save", "token_adapter")) for part in parts)
    return own and adapter_name in parts


def keep_only_adapters_in_checkpoints(model: Any) -> None:
    """Makes ``state_dict`` leave out, and ``load_state_dict`` not miss, what is not trained.

    Args:
        model: A ``HuggingFaceModel``; it does so while its ``should_save_peft_only`` is True. Hooks
            also run where another module, such as DDP, has the model inside.
    """
    _check_kind(model.model.peft_config[model.model.active_adapter])
    model.register_state_dict_post_hook(_drop_frozen_weights)
    model.register_load_state_dict_post_hook(_miss_no_frozen_weights)


def count_frozen(model: torch.nn.Module) -> int:
    """Returns the number of parameters that get no gradient, which costs a third of their work."""
    return sum(each.numel() for each in model.parameters() if not each.requires_grad)


def plain_name_of(model: Any, name: str) -> str | None:
    """Returns the name that a weight of a base has without adapters; None for the adapters' own.

    Args:
        model: A ``HuggingFaceModel`` with adapters.
        name: The weight's name in it.
    """
    adapter = model.model.active_adapter
    whole = f".modules_to_save.{adapter}."  # starts as a copy of the base's
    if whole not in name and _is_of(name, adapter):
        return None
    plain = name.replace(".base_model.model.", ".", 1).replace(".base_layer.", ".")
    return plain.replace(whole, ".").replace(".original_module.", ".")


def sum_of_base(model: Any) -> int | None:
    """Returns a sum over the bits of all frozen weights, which tells one base from another.

    It is the same however the weights are spread. All ranks call it.

    Args:
        model: A model of the peft package. Of one whose base has few bits the sum is None, since
            packages pack these as they like.
    """
    if has_few_bits(model) or any(hasattr(p, "ds_id") for p in model.parameters()):
        return None
    reshard(model)
    sums: dict[tuple[Any, tuple[int, ...]], torch.Tensor] = {}
    for place, (name, weight) in enumerate(model.named_parameters(), start=1):
        # What is trained whole is not used itself, and rows for new tokens were drawn.
        if weight.requires_grad or ".original_module." in name:
            continue
        sharded = as_sharded(weight)
        placements = () if sharded is None else sharded.placements
        axes = tuple(i for i, each in enumerate(placements) if not each.is_replicate())
        bits = local_part(weight.detach()).view(_BITS[weight.element_size()])
        total = place * bits.sum(dtype=torch.int64)  # overflow wraps, everywhere alike
        key = (None if sharded is None else sharded.device_mesh, axes)
        sums[key] = sums[key] + total if key in sums else total
    for (mesh, axes), total in sums.items():
        for axis in axes:
            torch.distributed.all_reduce(total, group=mesh.get_group(axis))
    return sum(int(total) for total in sums.values()) % 2**63


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _own_keys(model: Any, keys: Iterable[str]) -> set[str]:
    adapters = model.model
    name = adapters.active_adapter
    return set(
        filter_state_dict_peft(
            dict.fromkeys(keys), adapters.peft_config[name], name, remove_adapter_names=False
        )
    )


def _drop_frozen_weights(model: Any, state_dict: Any, prefix: str, local_metadata: Any) -> None:
    del local_metadata
    if model.should_save_peft_only:
        keys = {key for key in state_dict if key.startswith(prefix)}
        for key in keys - _own_keys(model, keys):
            del state_dict[key]


def _miss_no_frozen_weights(model: Any, incompatible_keys: Any) -> None:
    if model.should_save_peft_only:
        # Wrappers put their prefix before the names.
        own = tuple(_own_keys(model, [name for name, _ in model.named_parameters()]))
        missing = incompatible_keys.missing_keys
        missing[:] = [key for key in missing if key.endswith(own)]
