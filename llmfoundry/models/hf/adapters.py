"""Adapters (LoRA and its kin): put into models, restored, merged, written.

What converters and checkpointers use, each without a trainer:

- ``restore_adapters(base, peft_config, weights)``: a base model with a checkpoint's adapters;
- ``merge_adapters(model)``: a plain model that computes what the adapted one did;
- ``write_adapter_folder(folder, peft_config, weights, base_name)``: the folder that peft loads.

``peft_config`` is a ``peft.LoraConfig``: ``model.peft_config[model.active_adapter]``, or what
``composer.models.hf_metadata.get_peft_config_from_composer_state_dict`` finds in a checkpoint.
``weights`` are named as in a checkpoint, with or without its leading ``model.``.
"""

import copy
import itertools
import logging
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from composer.models.adapters import (
    add_adapters,
    filter_state_dict_peft,
    has_adapters,
    has_few_bits,
    quiet_peft,
)
from composer.models.huggingface import peft_installed
from composer.utils import dist
from llmfoundry.models.hf.adapter_settings import (
    ALL_LINEAR,
    PEFT_KEYS,
    check_adapter_settings,
    fit_to_model,
    lora_config,
)

__all__ = [
    "ALL_LINEAR",
    "PEFT_KEYS",
    "check_adapter_settings",
    "fit_to_model",
    "initialise_adapters_as_peft",
    "lora_config",
    "merge_adapters",
    "restore_adapters",
    "with_trained_adapters",
    "write_adapter_folder",
]

log = logging.getLogger(__name__)

# In a model


def with_trained_adapters(model: Any, name_or_path: str | None) -> Any:
    """Returns the model inside adapters that are loaded and trained on, if there are any.

    Raises:
        ValueError: The package peft is not installed.
    """
    if name_or_path is None:
        return model
    if not peft_installed:
        raise ValueError(
            f"pretrained_lora_id_or_path={name_or_path!r} needs the package peft, which is not "
            "installed: pip install 'llmfoundry[peft]'."
        )
    import peft

    with dist.run_local_rank_zero_first():  # one rank of a node downloads
        config = peft.PeftConfig.from_pretrained(name_or_path)
        if not isinstance(config, peft.LoraConfig):
            raise ValueError(
                f"The adapters in {name_or_path} are {config.peft_type}; only LORA is supported."
            )
        weights = peft.utils.load_peft_weights(name_or_path, device="cpu")
    config.inference_mode = False
    config = fit_to_model(config, model)
    _make_room(model, weights)
    with quiet_peft(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Found missing adapter keys")  # refused below
        adapted = peft.PeftModelForCausalLM.from_pretrained(
            model, name_or_path, is_trainable=True, config=config
        )
    own = filter_state_dict_peft(adapted.state_dict(keep_vars=True), config)
    found = {id(own[name]) for name in weights.keys() & own.keys()}  # of tied ones one is enough
    missing = [name for name, each in own.items() if id(each) not in found]
    if missing or weights.keys() - own.keys():
        raise ValueError(
            f"The weights in {name_or_path} are not those of its adapters on {_name(model)}. "
            f"Missing: {sorted(missing)[:3] or 'none'}. Not expected: "
            f"{sorted(weights.keys() - own.keys())[:3] or 'none'}."
        )
    return adapted


def _make_room(base: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Enlarges a base's embedding to that which was trained whole with adapters, for new tokens."""
    embedding = base.get_input_embeddings()
    name = next(name for name, each in base.named_modules() if each is embedding)
    whole = re.compile(rf"(.*\.)?{re.escape(name)}\.(modules_to_save\..*)?weight")
    rows = max((len(each) for key, each in weights.items() if whole.fullmatch(key)), default=0)
    if rows > len(embedding.weight):
        base.resize_token_embeddings(rows, mean_resizing=False)


def initialise_adapters_as_peft(model: Any, init_device: str) -> None:
    """Has adapters that are on ``meta`` start as peft starts them, whenever they come to life.

    Without it the base model would initialise them like layers of its own, and the adapted model
    would not start as the base.

    Args:
        model: A model of the peft package.
        init_device: Where all ranks have it. With ``mixed`` they get rank 0's weights.

    Raises:
        ValueError: They start from the base's weights (DoRA), which are not there yet.
    """
    config = model.peft_config[model.active_adapter]
    if init_device != "meta":
        return
    if config.use_dora or config.init_lora_weights not in (True, "gaussian"):
        raise ValueError(
            "DoRA, and init_lora_weights other than true and gaussian, need the base's weights, "
            "which init_device: meta does not have. Use init_device: mixed or cpu."
        )
    turns = itertools.count()

    def first(module: torch.nn.Module) -> None:
        for weight in module.parameters(recurse=False):
            with torch.random.fork_rng(devices=[]):  # the base draws what it would draw alone
                torch.manual_seed(int(torch.randint(2**62, ())) + next(turns))
                if config.init_lora_weights == "gaussian":
                    torch.nn.init.normal_(weight, std=1 / weight.shape[0])
                else:
                    torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5))

    def second(module: torch.nn.Module) -> None:
        for weight in module.parameters(recurse=False):
            torch.nn.init.zeros_(weight)

    for layer in model.modules():
        if hasattr(layer, "lora_A"):
            layer.lora_A.param_init_fn = first
            layer.lora_B.param_init_fn = second


# Out of a model


def restore_adapters(base: Any, peft_config: Any, weights: Mapping[str, torch.Tensor]) -> Any:
    """Returns a base model inside the adapters of a checkpoint; base and weights are used up.

    Args:
        base: The transformers model.
        peft_config: The checkpoint's adapter settings.
        weights: The checkpoint's weights: of the adapters, or of the base too, which then get in.

    Raises:
        ValueError: The weights are not those of these adapters, or the base is another one.
    """
    weights = {key.removeprefix("model."): value for key, value in weights.items()}
    base.tie_weights()  # on meta it may not be
    _make_room(base, weights)
    model = add_adapters(base, fit_to_model(peft_config, base))
    own = filter_state_dict_peft(
        model.state_dict(), peft_config, model.active_adapter, remove_adapter_names=False
    )
    tied = _tied_weights(model)
    try:
        found = model.load_state_dict(weights, strict=False, assign=True)
    except RuntimeError as error:  # shapes
        raise ValueError(f"The adapters are of another base than {_name(base)}: {error}") from error
    missing = sorted(own.keys() & set(found.missing_keys))
    if missing or found.unexpected_keys:
        raise ValueError(
            f"The adapters are of another base than {_name(base)}, or of other settings. Missing: "
            f"{missing[:3] or 'none'}. Not expected: {found.unexpected_keys[:3] or 'none'}."
        )
    for names in tied:
        first = model.get_parameter(next((name for name in names if name in weights), names[0]))
        for name in names:
            layer, _, key = name.rpartition(".")
            setattr(model.get_submodule(layer), key, first)
    return model.eval()


def _tied_weights(model: Any) -> list[list[str]]:
    """Returns the names of each weight that has several."""
    names: dict[torch.nn.Parameter, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(weight, []).append(name)
    return [each for each in names.values() if len(each) > 1]


def _name(model: Any) -> str:
    return f"the {type(model).__name__} {getattr(model.config, '_name_or_path', '') or ''}".rstrip()


def merge_adapters(model: Any) -> Any:
    """Returns a plain model that computes what the adapted one does; that one is used up.

    Quantised weights become float32, without which a merge would round the adapters away.

    Args:
        model: A model of the peft package with whole weights, not shards; without adapters it is
            returned as it is.

    Raises:
        ValueError: The merged weights are not finite.
    """
    if not has_adapters(model):
        return model
    model = _dequantised(model)
    with warnings.catch_warnings():
        # Said where it matters: what was trained whole is no longer the embedding's.
        warnings.filterwarnings("ignore", message="Input and output embeddings are no longer tied")
        merged = model.merge_and_unload(safe_merge=True)
    return merged.requires_grad_(True)


def _dequantised(model: Any) -> Any:
    """Returns the adapted model on float32 weights; with nothing quantised, itself."""
    if not has_few_bits(model):
        return model
    config = model.peft_config[model.active_adapter]
    trained = filter_state_dict_peft(
        model.state_dict(), config, model.active_adapter, remove_adapter_names=False
    )
    base = model.unload()
    if base.hf_quantizer.quantization_config.quant_method == "torchao":
        for layer in base.modules():
            weight = layer._parameters.get("weight")
            if hasattr(weight, "dequantize") and type(weight.data) is not torch.Tensor:
                layer.weight = torch.nn.Parameter(weight.dequantize())
        base.hf_quantizer.remove_quantization_config(base)
    else:
        base = base.dequantize()
    return restore_adapters(base.float(), config, trained)


def write_adapter_folder(
    folder: str | Path,
    peft_config: Any,
    weights: Mapping[str, torch.Tensor],
    base_name: str | None = None,
    adapter_name: str = "default",
) -> None:
    """Writes the folder that ``PeftModel.save_pretrained`` would: settings and adapter weights.

    The model itself is not needed, so the base's weights need not be in memory.

    Args:
        folder: Where; it is made.
        peft_config: The adapters' settings.
        weights: Whole tensors by name; those that are not the adapters' are left out.
        base_name: The folder or the hub's name of the base, recorded as
            ``base_model_name_or_path``; by default what the settings have.
        adapter_name: The adapters' name in the names of the weights.

    Raises:
        ValueError: There are no adapters among the weights.
    """
    from safetensors.torch import save_file

    config = copy.copy(peft_config)
    config.inference_mode = True  # as peft writes it; whoever trains on says so
    config.base_model_name_or_path = base_name or config.base_model_name_or_path or None
    if config.base_model_name_or_path is None:
        log.warning(
            "The folder %s names no base model: only PeftModel.from_pretrained(base, folder) will "
            "load it. Give base_name to record one.",
            folder,
        )
    weights = {key.removeprefix("model."): value for key, value in weights.items()}
    own = filter_state_dict_peft(weights, peft_config, adapter_name)
    if not own:
        raise ValueError(f"There are no weights of adapters among {sorted(weights)[:3]}...")
    config.save_pretrained(str(folder))
    tensors = {key: value.detach().cpu().clone().contiguous() for key, value in own.items()}
    save_file(tensors, Path(folder) / "adapter_model.safetensors", metadata={"format": "pt"})
