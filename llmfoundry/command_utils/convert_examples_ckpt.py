"""Turns a checkpoint of the examples repository (``mosaic_gpt``) into one of an MPT."""

import os
import tempfile
from pathlib import Path
from typing import Any

from composer.checkpoint.download import download_object_or_file, without_text_link
from composer.checkpoint.monolithic import (
    opened_plain,
    torch_load_with_validation,
    write_checkpoint_file,
)
from composer.models.hf_metadata import saved_hf_state
from composer.utils.file_helpers import is_uri

__all__ = ["convert_examples_ckpt", "convert_examples_ckpt_config", "convert_examples_ckpt_name"]

_IN_NAMES = (
    (".ln_", ".norm_"),
    (".mlp_up.", ".up_proj."),
    (".mlp_down.", ".down_proj."),
    (".mlp.", ".ffn."),
)
_IN_ATTENTION = {
    "attn_qk_ln": "qk_ln",
    "attn_clip_qkv": "clip_qkv",
    "attn_pdrop": "attn_pdrop",
    "attn_impl": "attn_impl",
    "softmax_scale": "softmax_scale",
    "attn_uses_sequence_id": "attn_uses_sequence_id",
    "alibi": "alibi",
    "alibi_bias_max": "alibi_bias_max",
}
_IN_INITIALISATION = {
    "param_init_fn": "name",
    "fan_mode": "fan_mode",
    "init_nonlinearity": "init_nonlinearity",
    "init_gain": "init_gain",
    "init_std": "init_std",
    "init_div_is_residual": "init_div_is_residual",
    "emb_init_std": "emb_init_std",
    "emb_init_uniform_lim": "emb_init_uniform_lim",
}


def convert_examples_ckpt_name(name: str) -> str:
    """Returns the name that a weight of a ``mosaic_gpt`` has in an MPT."""
    for old, new in _IN_NAMES:
        name = name.replace(old, new)
    return name


def convert_examples_ckpt_config(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the configuration of a ``mosaic_gpt`` as that of an MPT."""
    content = dict(content)
    content["model_type"] = "mpt"
    if "mlp_ratio" in content:
        content["expansion_ratio"] = content.pop("mlp_ratio")
    if "low_precision_layernorm" in content:
        is_low = content.pop("low_precision_layernorm")
        content["norm_type"] = "low_precision_layernorm" if is_low else "layernorm"
    for section, moved in (("attn_config", _IN_ATTENTION), ("init_config", _IN_INITIALISATION)):
        own = dict(content.get(section) or {})
        own |= {new: content.pop(old) for old, new in moved.items() if old in content}
        content[section] = own
    return content


def convert_examples_ckpt(
    checkpoint_path: str, output_path: str, local_ckpt_path: str | None = None
) -> None:
    """Writes the checkpoint with the names and the configuration of today.

    Args:
        checkpoint_path: A one-file checkpoint, here or in an object store.
        output_path: The file to write, which must not exist.
        local_ckpt_path: Where a copy of a remote checkpoint is kept, by default nowhere.

    Raises:
        FileExistsError: There is such a file.
        ValueError: It is no checkpoint of a ``mosaic_gpt``.
    """
    if Path(output_path).exists():
        raise FileExistsError(f"{output_path} exists. Give a file that does not.")
    with tempfile.TemporaryDirectory() as scratch:
        path = without_text_link(checkpoint_path)
        if is_uri(checkpoint_path):
            path = local_ckpt_path or os.path.join(scratch, os.path.basename(checkpoint_path))
            download_object_or_file(checkpoint_path, path, None)
        with opened_plain(path) as plain:
            content = torch_load_with_validation(plain, mmap=True)
            described = saved_hf_state(content)["model"]["config"]
            if described["content"].get("model_type") != "mosaic_gpt":
                raise ValueError(
                    f"{checkpoint_path} is of a {described['content'].get('model_type')!r}; only "
                    "checkpoints of a 'mosaic_gpt' need converting."
                )
            described["content"] = convert_examples_ckpt_config(described["content"])
            described["class"] = "llmfoundry.models.mpt.modeling_mpt.MPTForCausalLM"
            state = content["state"]
            state["model"] = _renamed(state["model"])
            for optimizer in state.get("optimizers", {}).values():
                optimizer["state"] = _renamed(optimizer["state"])
                for group in optimizer["param_groups"]:
                    group["params"] = [convert_examples_ckpt_name(n) for n in group["params"]]
            write_checkpoint_file(content, output_path)


def _renamed(entries: dict[str, Any]) -> dict[str, Any]:
    return {convert_examples_ckpt_name(name): value for name, value in entries.items()}
