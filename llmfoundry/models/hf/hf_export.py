"""A model and its tokenizer as a folder that transformers loads."""

import copy
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from composer.models.hf_metadata import defining_class
from llmfoundry.models.hf.streamed_weights import OutgoingWeights, Read, write_weights
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.models.mpt.transformers_mpt import to_transformers_config, why_not_transformers
from llmfoundry.utils.huggingface_hub_utils import (
    FLATTENED,
    edit_files_for_hf_compatibility,
    source_of_module,
)

__all__ = [
    "DTYPES",
    "MAX_SHARD_SIZE",
    "HFExport",
    "settle_config",
    "write_hf_folder",
    "write_mpt_code",
]

log = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
MAX_SHARD_SIZE = "5GB"
PUBLIC_MODULES: dict[type, str] = {
    MPTConfig: "llmfoundry.models.mpt.configuration_mpt",
    MPTForCausalLM: "llmfoundry.models.mpt.modeling_mpt",
}
"""What the modules of our own classes are called in a folder with code."""
NEEDS_CODE = (
    "transformers' own MPT class cannot compute this model; load it with trust_remote_code=True"
)
"""Stands in ``attn_config`` where transformers' MPT class, and nothing else, expects a number. So
loading the model without its code fails with these words (it would drop biases and more, without
one), and loading the tokenizer does not."""


class HFExport:
    """A model as transformers will load it. The model itself is left as it is.

    Args:
        model: The transformers model; with ``read``, its weights may be without memory.
        dtype: What weights are stored in.
        read: Returns a weight by the model's name for it; by default the model's own.
        tokenizer: Gives the tokens that end and pad texts, where the model does not say.
        flatten_imports: Packages whose modules go into the folder with an MPT's code.
    """

    def __init__(
        self,
        model: Any,
        dtype: torch.dtype,
        read: Read | None = None,
        tokenizer: Any | None = None,
        flatten_imports: Sequence[str] = FLATTENED,
    ) -> None:
        self._flatten_imports = flatten_imports
        source: Read = model.state_dict().__getitem__ if read is None else read
        self.config = copy.deepcopy(model.config)
        self.generation_config = _generation_config(model, tokenizer)
        self.needs_code = False
        """Whether the folder needs the code in it to be loaded (``trust_remote_code``)."""
        self._remote_code = None
        if isinstance(self.config, MPTConfig):
            settle_config(self.config)
            reasons = why_not_transformers(self.config)
            self._own_classes = type(self.config), defining_class(model)
            if self._own_classes[1] is not MPTForCausalLM:
                reasons.append(f"the class is {self._own_classes[1].__name__}")
            self.needs_code = bool(reasons)
            if self.needs_code:
                log.info("The folder gets modelling code: %s.", "; ".join(reasons))
                _mark_as_needing_code(self.config, *self._own_classes)
            else:
                model = _as_transformers(self.config)
                self.config = model.config
        elif model.is_remote_code():
            self._remote_code, self.needs_code = model, True
        self.model_class = type(model)
        self.config.dtype = dtype
        self.config.architectures = [self.model_class.__name__.removeprefix("FSDP")]
        self.config._name_or_path = ""
        self.weights = OutgoingWeights(model, source, dtype)

    def write(self, folder: Path, max_shard_size: str) -> int:
        """Writes weights, configuration and, if it takes any, the modelling code.

        Args:
            folder: An existing folder.
            max_shard_size: The size above which weights are split into several files.

        Returns:
            How many files the weights are in.
        """
        if self._remote_code is not None:
            from transformers.dynamic_module_utils import custom_object_save

            custom_object_save(self._remote_code, folder, config=self.config)
        self.config.save_pretrained(folder)
        if self.generation_config is not None:
            self.generation_config.save_pretrained(folder)
        n_files = write_weights(self.weights, folder, max_shard_size)
        if self._remote_code is None and self.needs_code:
            write_mpt_code(folder, self._own_classes, self._flatten_imports)
        return n_files


def write_hf_folder(
    model: Any,
    tokenizer: Any | None,
    folder: Path,
    dtype: torch.dtype,
    max_shard_size: str = MAX_SHARD_SIZE,
    flatten_imports: Sequence[str] = FLATTENED,
) -> bool:
    """Writes weights, configuration, tokenizer and, if it takes any, the modelling code.

    Args:
        model: The transformers model with whole weights.
        tokenizer: Its tokenizer, if there is one.
        folder: An empty folder.
        dtype: What weights are stored in.
        max_shard_size: The size above which weights are split into several files.
        flatten_imports: Packages whose modules go into the folder with an MPT's code.

    Returns:
        Whether the folder needs the code in it to be loaded (``trust_remote_code``).
    """
    export = HFExport(model, dtype, tokenizer=tokenizer, flatten_imports=flatten_imports)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    export.write(folder, max_shard_size)
    return export.needs_code


def settle_config(config: MPTConfig) -> None:
    """Takes out of a configuration what only the run was about."""
    config.init_device = "cpu"
    config.attn_config["attn_impl"] = "torch"
    if "moe_world_size" in config.ffn_config:
        config.ffn_config |= {"moe_world_size": 1, "device_mesh": None, "lbl_process_group": None}


def _as_transformers(config: MPTConfig) -> Any:
    """Returns transformers' own MPT, without memory for its weights."""
    from transformers import MptForCausalLM

    with torch.device("meta"):
        theirs = MptForCausalLM(to_transformers_config(config))
    theirs.tie_weights()
    return theirs


def _generation_config(model: Any, tokenizer: Any | None) -> Any | None:
    if not model.can_generate():
        return None
    config = copy.deepcopy(model.generation_config)
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        # What was made up from the model's configuration knows less than the tokenizer.
        is_open = getattr(config, key) is None or config._from_model_config
        token = getattr(tokenizer, key, None)
        if is_open and token is not None:
            setattr(config, key, token)
    return config


def _mark_as_needing_code(config: MPTConfig, config_class: type, model_class: type) -> None:
    """Names the folder's code, and keeps transformers' own class from taking the model for its."""
    classes = {"AutoConfig": config_class, "AutoModelForCausalLM": model_class}
    config.auto_map = {
        auto: f"{_module(each).rpartition('.')[2]}.{each.__name__}"
        for auto, each in classes.items()
    }
    attn_config = config.attn_config
    attn_config["id2label"] = {NEEDS_CODE: ""}
    # Numbers of the very type that the class wants, so that it comes to read the words.
    if attn_config["attn_pdrop"] == 0:
        attn_config["attn_pdrop"] = 0
    for key in ("clip_qkv", "softmax_scale"):
        if attn_config[key] is not None:
            attn_config[key] = float(attn_config[key])


def _module(kind: type) -> str:
    return PUBLIC_MODULES.get(kind, kind.__module__)


def write_mpt_code(
    folder: Path,
    classes: Sequence[type] = (MPTConfig, MPTForCausalLM),
    flatten_imports: Sequence[str] = FLATTENED,
) -> None:
    """Puts the code of an MPT's classes, and what it imports, into a folder."""
    for module in map(_module, classes):
        name = module.rpartition(".")[2]
        (folder / f"{name}.py").write_text(source_of_module(module))
    edit_files_for_hf_compatibility(folder, flatten_imports)
