"""The settings of adapters (LoRA and its kin) in recipes: what may be set, and fits a model."""

import copy
import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from composer.models.huggingface import peft_installed
from composer.utils.import_helpers import MissingConditionalImportError
from llmfoundry.models.hf.adapted_head import lora_head_class
from llmfoundry.models.layers.custom_embedding import LanguageModelHead

__all__ = ["ALL_LINEAR", "PEFT_KEYS", "check_adapter_settings", "fit_to_model", "lora_config"]

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
    peft_config: Any,
    name_or_path: str | None,
    should_save_peft_only: bool,
    init_device: str = "cpu",
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
    if name_or_path is not None and init_device == "meta":
        raise ValueError(
            f"pretrained_lora_id_or_path={name_or_path!r} and init_device: meta do not go "
            "together: the loaded weights would be lost. Use init_device: mixed or cpu."
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
    _keep_tied(config, model)
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


def _keep_tied(config: Any, model: Any) -> None:
    """Has an embedding that is the output layer too stay so where it is trained whole.

    peft would train a copy of the one, and leave the other as it was.
    """
    from peft.utils.constants import EMBEDDING_LAYER_NAMES

    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    if None in ends or ends[0] is ends[1] or ends[0].weight is not ends[1].weight:
        return
    names = [name for name, each in model.named_modules() if any(each is end for end in ends)]
    entries = config.modules_to_save or ()
    others = [entry for entry in entries if not any(_names_it(entry, name) for name in names)]
    if len(others) == len(entries):
        return
    if names[0].rpartition(".")[2] not in EMBEDDING_LAYER_NAMES:
        raise ValueError(
            f"peft_config.modules_to_save names one of {names}, which are one weight, and peft "
            f"keeps that only where the embedding is called one of {EMBEDDING_LAYER_NAMES}. Leave "
            "it out, or untie them: config_overrides: {tie_word_embeddings: false}."
        )
    config.modules_to_save, config.ensure_weight_tying = [*others, names[0]], True
