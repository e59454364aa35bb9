"""Checkpoints of the examples repository: names, moments and configuration become an MPT's."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from llmfoundry.command_utils.convert_composer_to_hf import (
    write_huggingface_pretrained_from_composer_checkpoint,
)
from llmfoundry.command_utils.convert_examples_ckpt import (
    convert_examples_ckpt,
    convert_examples_ckpt_config,
)


def _old_name(name: str) -> str:
    for new, old in ((".norm_", ".ln_"), (".up_proj.", ".mlp_up."), (".down_proj.", ".mlp_down.")):
        name = name.replace(new, old)
    return name.replace(".ffn.", ".mlp.")


def _as_it_was(content: dict[str, Any]) -> None:
    """Turns a checkpoint of an MPT into one of its forerunner, in place."""
    state = content["state"]
    state["model"] = {_old_name(name): weight for name, weight in state["model"].items()}
    for optimizer in state["optimizers"].values():
        optimizer["state"] = {_old_name(n): each for n, each in optimizer["state"].items()}
        for group in optimizer["param_groups"]:
            group["params"] = [_old_name(name) for name in group["params"]]
    described = state["integrations"]["huggingface"]["model"]["config"]
    described["class"] = "src.models.mosaic_gpt.MosaicGPT"
    old = described["content"]
    attention, start = old.pop("attn_config"), old.pop("init_config")
    described["content"] = {
        "model_type": "mosaic_gpt",
        **{key: old[key] for key in ("d_model", "n_heads", "n_layers", "vocab_size")},
        **{key: old[key] for key in ("max_seq_len", "no_bias", "resid_pdrop", "emb_pdrop")},
        "mlp_ratio": old["expansion_ratio"],
        "attn_pdrop": attention["attn_pdrop"],
        "attn_impl": "triton",
        "attn_qk_ln": False,
        "attn_clip_qkv": None,
        "softmax_scale": None,
        "alibi": attention["alibi"],
        "alibi_bias_max": attention["alibi_bias_max"],
        "low_precision_layernorm": True,
        "param_init_fn": "kaiming_normal_",
        "init_std": start["init_std"],
        "fan_mode": "fan_in",
    }


def test_it_is_the_mpt_that_it_became(golden: Path, tmp_path: Path) -> None:
    today = golden / "checkpoints" / "mpt-mid-run-ep1-ba5-rank0.pt"
    content = torch.load(today, weights_only=False)
    names = set(content["state"]["model"])
    _as_it_was(content)
    assert not names <= set(content["state"]["model"])
    old = tmp_path / "old.pt"
    torch.save(content, old)
    convert_examples_ckpt(str(old), str(tmp_path / "new.pt"))
    new = torch.load(tmp_path / "new.pt", weights_only=False)["state"]
    assert set(new["model"]) == names
    (optimizer,) = new["optimizers"].values()
    named = {name for group in optimizer["param_groups"] for name in group["params"]}
    assert named == set(optimizer["state"]) <= names
    with pytest.warns(Warning, match="triton is read as torch"):
        write_huggingface_pretrained_from_composer_checkpoint(
            str(tmp_path / "new.pt"), tmp_path / "a"
        )
    write_huggingface_pretrained_from_composer_checkpoint(str(today), tmp_path / "b")
    ours, theirs = (load_file(tmp_path / f / "model.safetensors") for f in "ab")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    with pytest.raises(FileExistsError):
        convert_examples_ckpt(str(old), str(tmp_path / "new.pt"))
    with pytest.raises(ValueError, match="only checkpoints of a 'mosaic_gpt'"):
        convert_examples_ckpt(str(today), str(tmp_path / "other.pt"))


def test_configuration() -> None:
    old = {"mlp_ratio": 2, "low_precision_layernorm": False, "param_init_fn": "baseline_"}
    old |= {"attn_clip_qkv": 6, "attn_qk_ln": True, "init_gain": 1}
    assert convert_examples_ckpt_config({**old, "model_type": "mosaic_gpt", "d_model": 8}) == {
        "model_type": "mpt",
        "d_model": 8,
        "expansion_ratio": 2,
        "norm_type": "layernorm",
        "attn_config": {"qk_ln": True, "clip_qkv": 6},
        "init_config": {"name": "baseline_", "init_gain": 1},
    }
