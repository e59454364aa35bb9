"""Adapters (LoRA and its kin) of recipes: what may be set, put in, restored, merged, written.

What converters and checkpointers use, each without a trainer:

- ``restore_adapters(base, peft_config, weights)``: a base model with a checkpoint's adapters;
- ``merge_adapters(model)``: a plain model that computes what the adapted one did;
- ``write_adapter_folder(folder, peft_config, weights, base_name)``: the folder that peft loads.

``peft_config`` is a ``peft.LoraConfig``: ``model.peft_config[model.active_adapter]``, or what
``composer.models.hf_metadata.get_peft_config_from_composer_state_dict`` finds in a checkpoint.
``weights`` are named as in a checkpoint, with or without its leading ``model.``.
"""

import copy
import difflib
import functools
import itertools
import logging
import math
import re
import warnings
from collections.abc import Iterable, Mapping
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
from composer.utils.import_helpers import MissingConditionalImportError
from llmfoundry.models.hf.adapted_head import lora_head_class
from llmfoundry.models.layers.custom_embedding import LanguageModelHead

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

ALL_LINEAR = "all-linear"
"""The ``target_modules`` of all linear layers but the output layer. LoRA on all of them, not on
attention alone, learns as full fine-tuning does (LoRA Without Regret, Thinking Machines 2025)."""

PEFT_KEYS = frozenset(
    {
        "peft_type", "task_type", "r", "lora_alpha", "lora_dropout", "target_modules",
        "exclude_modules", "use_rslora", "use_dora", "bias", "lora_bias", "modules_to_save",
        "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern",
        "alpha_pattern", "fan_in_fan_out", "base_model_name_or_path", "revision",
    }
)  # fmt: skip
"""The keys of ``peft_config``. ``peft.LoraConfig`` has more: those change the base's own weights,
which adapter checkpoints do not hold, or need a loss or data of their own."""

INITIALISATIONS = (True, False, "gaussian", "orthogonal")
"""The values of ``init_lora_weights`` that leave the base as it is and need no data."""


def check_adapter_settings(
    peft_config: Any, name_or_path: str | None, should_save_peft_only: bool
) -> None:
    """Refuses what has no effect, before a model is built.

    Raises:
        ValueError: There is such a setting.
    """
    if peft_config is not None and name_or_path is not None:
        raise ValueError(
            f"peft_config and pretrained_lora_id_or_path={name_or_path!r} are two answers to one "
            "question: new adapters, or loaded ones, which bring their settings."
        )
    if peft_config is None and name_or_path is None and not should_save_peft_only:
        raise ValueError("should_save_peft_only=False has no effect without adapters.")


def lora_config(settings: Mapping[str, Any]) -> Any:
    """Returns a recipe's ``peft_config`` as a ``peft.LoraConfig``.

    Raises:
        MissingConditionalImportError: The package peft is not installed.
        ValueError: It is no LoRA for a causal language model, a key is unknown or has no effect.
    """
    if not peft_installed:
        raise MissingConditionalImportError("peft", "peft")
    import peft

    for key, right in (("peft_type", "LORA"), ("task_type", "CAUSAL_LM")):
        if str(settings.get(key, "")).upper() != right:
            raise ValueError(
                f"peft_config.{key}={settings.get(key)!r} is not supported; set it to {right}."
            )
    given = {key: value for key, value in settings.items() if not _is_default(key, value)}
    given["task_type"] = "CAUSAL_LM"
    given.pop("peft_type", None)  # the class says it
    for key in given:
        if key not in PEFT_KEYS:
            raise ValueError(_unknown(key))
    start = given.get("init_lora_weights", True)
    if start not in INITIALISATIONS:
        raise ValueError(
            f"peft_config.init_lora_weights={start!r} changes the base's own weights, or needs "
            f"data: it is not supported. Use one of {list(INITIALISATIONS)}."
        )
    if "layers_pattern" in given and "layers_to_transform" not in given:
        raise ValueError("peft_config.layers_pattern has no effect without layers_to_transform.")
    return peft.LoraConfig(**given)


def _is_default(key: str, value: Any) -> bool:
    """Says whether a key says what would hold without it, as in a whole ``adapter_config.json``."""
    import peft

    field = peft.LoraConfig.__dataclass_fields__.get(key)
    return field is not None and (value is None or getattr(_defaults(), key) == value)


@functools.cache
def _defaults() -> Any:
    import peft

    return peft.LoraConfig()


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, PEFT_KEYS, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"It may have: {', '.join(sorted(PEFT_KEYS))}."
    return f"peft_config does not fit peft.LoraConfig as used here: it may not have {key!r}. {hint}"


def fit_to_model(config: Any, model: Any, default_targets: str | None = None) -> Any:
    """Returns adapter settings with their targets in a model, each of which is checked to exist.

    Args:
        config: What :func:`lora_config` returned.
        model: The transformers model, without adapters.
        default_targets: The ``target_modules`` where the settings have none; by default what peft
            knows of this kind of model, else every linear layer but the output layer.

    Raises:
        ValueError: A setting names nothing in the model, or what adapters cannot be merged into.
    """
    import peft.utils

    known = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    config = copy.copy(config)
    if config.target_modules is None:
        of_peft = known.get(model.config.model_type, ALL_LINEAR)
        config.target_modules = default_targets or of_peft
    layers = _linear_layers(model)
    if config.target_modules == ALL_LINEAR:
        head = model.get_output_embeddings()
        layers = {name: layer for name, layer in layers.items() if layer is not head}
        # Spelt out: peft leaves the output layer out only of classes that it knows.
        config.target_modules = sorted(_endings(layers))
    names = [name for name, _ in model.named_modules()]
    targeted = _targeted(config, names, layers)
    _check_patterns(config, names, targeted)
    _check_untied(model, targeted)
    is_transposed = any(type(layers.get(name)).__name__ == "Conv1D" for name in targeted)
    if config.fan_in_fan_out and not is_transposed:
        raise ValueError("peft_config.fan_in_fan_out has no effect: no target is a Conv1D.")
    config.fan_in_fan_out = is_transposed
    if any(isinstance(layers.get(name), LanguageModelHead) for name in targeted):
        if config.lora_dropout:
            raise ValueError(
                f"peft_config.lora_dropout={config.lora_dropout} is not possible on an MPT's "
                "lm_head, whose loss is computed without logits. Set it to 0, or leave lm_head out "
                "of target_modules."
            )
        config._register_custom_module({LanguageModelHead: lora_head_class()})
    return config


def _linear_layers(model: Any) -> dict[str, Any]:
    from transformers.pytorch_utils import Conv1D

    kinds = (torch.nn.Linear, Conv1D)
    return {name: each for name, each in model.named_modules() if isinstance(each, kinds)}


def _endings(layers: Iterable[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in layers}


def _names_it(entry: str, name: str) -> bool:
    return name == entry or name.endswith(f".{entry}")


def _targeted(config: Any, names: list[str], layers: Mapping[str, Any]) -> list[str]:
    from peft.tuners.tuners_utils import check_target_module_exists

    targets = config.target_modules
    entries = [targets] if isinstance(targets, str) else sorted(targets)
    for entry in entries:
        alone = copy.copy(config)
        alone.target_modules = entry if isinstance(targets, str) else [entry]
        if not any(check_target_module_exists(alone, name) for name in names):
            raise ValueError(
                f"peft_config.target_modules={entry!r} matches no layer of the model that the "
                f"other settings leave. Its linear layers are {', '.join(sorted(_endings(layers)))}"
                f" (as in {next(iter(layers), 'none')}); {ALL_LINEAR!r} means all but the output "
                "layer."
            )
    return [name for name in names if check_target_module_exists(config, name)]


def _check_patterns(config: Any, names: list[str], targeted: list[str]) -> None:
    """Refuses entries of the other settings that name nothing."""

    def excluded(entry: str, name: str) -> bool:
        if isinstance(config.exclude_modules, str):
            return re.fullmatch(entry, name) is not None
        return _names_it(entry, name)

    def in_layer(entry: int, name: str) -> bool:
        return f".{entry}." in name

    def by_pattern(entry: str, name: str) -> bool:
        return re.match(rf"(.*\.)?({entry})$", name) is not None

    checks: list[tuple[str, Any, Any, list[str]]] = [
        ("exclude_modules", config.exclude_modules, excluded, names),
        ("modules_to_save", config.modules_to_save, _names_it, names),
        ("layers_to_transform", config.layers_to_transform, in_layer, targeted),
        ("rank_pattern", config.rank_pattern, by_pattern, targeted),
        ("alpha_pattern", config.alpha_pattern, by_pattern, targeted),
    ]
    for key, entries, matches, among in checks:
        for entry in [entries] if isinstance(entries, (str, int)) else entries or ():
            if not any(matches(entry, name) for name in among):
                raise ValueError(
                    f"peft_config.{key} has {entry!r}, which has no effect: no such layer is "
                    f"{'in the model' if among is names else 'among the targets'}."
                )


def _check_untied(model: Any, targeted: list[str]) -> None:
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    if any(end is None for end in ends) or ends[0].weight is not ends[1].weight:
        return
    if tied := [name for name in targeted if any(model.get_submodule(name) is e for e in ends)]:
        raise ValueError(
            f"peft_config.target_modules names {tied[0]!r}, whose weight is the embedding's and "
            "the output layer's at once, so that an adapter of one could not be merged. Leave it "
            "out, or train it whole with modules_to_save."
        )


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

    config = peft.PeftConfig.from_pretrained(name_or_path)
    config.inference_mode = False
    config = fit_to_model(config, model)
    with quiet_peft():
        return peft.PeftModelForCausalLM.from_pretrained(
            model, name_or_path, is_trainable=True, config=config
        )


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
    model = add_adapters(base, fit_to_model(peft_config, base))
    own = filter_state_dict_peft(
        model.state_dict(), peft_config, model.active_adapter, remove_adapter_names=False
    )
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
    base.tie_weights()
    return model.eval()


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
