"""A model and its tokenizer as a folder that transformers loads."""

import logging
from pathlib import Path
from typing import Any

import torch

from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.models.mpt.transformers_mpt import to_transformers_config, why_not_transformers
from llmfoundry.utils.huggingface_hub_utils import edit_files_for_hf_compatibility

__all__ = ["DTYPES", "MAX_SHARD_SIZE", "write_hf_folder"]

log = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
MAX_SHARD_SIZE = "5GB"
AUTO_MAP = {
    "AutoConfig": "configuration_mpt.MPTConfig",
    "AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM",
}
NEEDS_CODE = (
    "transformers' own MPT class cannot compute this model; load it with trust_remote_code=True"
)
"""Stands in ``attn_config`` where transformers' MPT class, and nothing else, expects a number. So
loading the model without its code fails with these words (it would drop biases and more, without
one), and loading the tokenizer does not."""


def write_hf_folder(
    model: Any,
    tokenizer: Any | None,
    folder: Path,
    dtype: torch.dtype,
    max_shard_size: str = MAX_SHARD_SIZE,
) -> bool:
    """Writes weights, configuration, tokenizer and, if it takes any, the modelling code.

    Args:
        model: The transformers model with whole weights, which are cast in place.
        tokenizer: Its tokenizer, if there is one.
        folder: An empty folder.
        dtype: What weights are stored in.
        max_shard_size: The size above which weights are split into several files.

    Returns:
        Whether the folder needs the code in it to be loaded (``trust_remote_code``).
    """
    needs_code = False
    if model.config.model_type == "mpt":
        reasons = why_not_transformers(model.config)
        needs_code = bool(reasons)
        if needs_code:
            log.info("The folder gets modelling code: %s.", "; ".join(reasons))
            _mark_as_needing_code(model.config)
        else:
            model = _for_transformers(model)
    model = model.to(dtype)
    model.config.dtype = dtype
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            setattr(model.generation_config, key, getattr(tokenizer, key))
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    for path in folder.glob("*.safetensors"):
        path.chmod((folder / "config.json").stat().st_mode)  # safetensors lets only the owner read
    if needs_code:
        _write_code(folder)
    return needs_code


def _for_transformers(model: Any) -> Any:
    """Returns transformers' own MPT with the weights of ours."""
    from transformers import MptForCausalLM

    with torch.device("meta"):
        theirs = MptForCausalLM(to_transformers_config(model.config))
    weights = dict(model.state_dict())
    weights.setdefault("lm_head.weight", weights["transformer.wte.weight"])
    theirs.load_state_dict(weights, strict=True, assign=True)
    theirs.tie_weights()
    return theirs.eval()


def _mark_as_needing_code(config: MPTConfig) -> None:
    """Names the folder's code, and keeps transformers' own class from taking the model for its."""
    config.auto_map = AUTO_MAP
    attn_config = config.attn_config
    attn_config["id2label"] = {NEEDS_CODE: ""}
    # Numbers of the very type that the class wants, so that it comes to read the words.
    if attn_config["attn_pdrop"] == 0:
        attn_config["attn_pdrop"] = 0
    for key in ("clip_qkv", "softmax_scale"):
        if attn_config[key] is not None:
            attn_config[key] = float(attn_config[key])


def _write_code(folder: Path) -> None:
    """Puts the modelling code into the folder."""
    for module in ("configuration_mpt", "modeling_mpt"):
        (folder / f"{module}.py").write_text(
            (Path(__file__).parents[1] / "mpt" / f"{module}.py").read_text()
        )
    edit_files_for_hf_compatibility(folder)
