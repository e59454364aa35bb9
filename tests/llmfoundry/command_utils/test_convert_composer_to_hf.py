"""From checkpoint to folder: golden, transformers' own class, modelling code, and refusals."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, MptForCausalLM

from composer.utils.object_store.s3_object_store import S3ObjectStore
from llmfoundry.command_utils.convert_composer_to_hf import (
    convert_composer_to_hf,
    write_huggingface_pretrained_from_composer_checkpoint,
)
from llmfoundry.models.mpt.composer_mpt import ComposerMPTCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.models.mpt.transformers_mpt import why_not_transformers
from tests.composer.utils.object_store.faults import Proxy

EXPRESSIBLE: dict[str, Any] = {
    "d_model": 24,
    "n_heads": 6,
    "n_layers": 2,
    "max_seq_len": 32,
    "vocab_size": 384,
    "no_bias": True,
    "attn_config": {"attn_impl": "torch", "alibi": True},
}


@pytest.fixture
def checkpoint(golden: Path) -> Path:
    return golden / "checkpoints" / "mpt-mid-run-ep1-ba5-rank0.pt"


@pytest.fixture
def tokenizer(golden: Path) -> Any:
    return AutoTokenizer.from_pretrained(golden / "checkpoints" / "tokenizer")


def _save(model: ComposerMPTCausalLM, path: Path) -> Path:
    """Writes what of a checkpoint the conversion reads."""
    state = {"model": model.state_dict(), "integrations": {"huggingface": model.get_metadata()}}
    torch.save({"state": state}, path)
    return path


def _random_model(tokenizer: Any, **kwargs: Any) -> ComposerMPTCausalLM:
    model = ComposerMPTCausalLM(tokenizer=tokenizer, use_train_metrics=False, **kwargs).eval()
    for param in model.parameters():
        param.data.add_(torch.randn_like(param) * 0.05)
    return model


@pytest.fixture
def converted(checkpoint: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "hf"
    write_huggingface_pretrained_from_composer_checkpoint(str(checkpoint), folder)
    return folder


def test_golden_folder(converted: Path, golden: Path) -> None:
    expected = golden / "checkpoints" / "hf_folder"
    ours, theirs = (load_file(f / "model.safetensors") for f in (converted, expected))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    ours, theirs = (json.loads((f / "config.json").read_text()) for f in (converted, expected))
    ours["attn_config"].pop("id2label")
    about_versions = {"transformers_version", "torch_dtype"}
    assert {key: ours[key] for key in theirs.keys() - about_versions} == {
        key: theirs[key] for key in theirs.keys() - about_versions
    }
    text = "Hello world, this is a test"
    ours, theirs = (
        AutoTokenizer.from_pretrained(f)(text) for f in (converted, expected.parent / "tokenizer")
    )
    assert ours["input_ids"] == theirs["input_ids"]


def _run_elsewhere(program: str, tmp_path: Path) -> Any:
    """Runs a program where this project is not installed; returns what it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "HF_HOME": str(tmp_path / "home"), "PYTHONPATH": ""},
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_folder_loads_where_this_project_is_not_installed(
    converted: Path, golden: Path, tmp_path: Path
) -> None:
    program = f"""
import json, sys
import numpy as np, torch
sys.modules["llmfoundry"] = sys.modules["composer"] = None
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(converted)!r}, trust_remote_code=True).eval()
arrays = np.load({str(golden / "checkpoints" / "hf_logits.npz")!r})
tokens = torch.tensor(arrays["input_ids"])
difference = (model(tokens).logits - torch.tensor(arrays["logits"])).abs().max().item()
written = model.generate(tokens[:, :6], max_new_tokens=6, do_sample=False).tolist()
print(json.dumps([difference, written]))
"""
    difference, written = _run_elsewhere(program, tmp_path)
    assert difference < 2e-5
    record = json.loads((golden / "checkpoints" / "hf_record.json").read_text())
    assert written == record["greedy_generation"]


def test_value_embeddings_load_where_this_project_is_not_installed(
    tokenizer: Any, tmp_path: Path
) -> None:
    attn_config = {"attn_impl": "torch", "alibi": True, "value_embeddings": "every_other"}
    model = _random_model(tokenizer, **{**EXPRESSIBLE, "attn_config": attn_config})
    folder, tokens = tmp_path / "hf", torch.randint(0, 384, (2, 20))
    write_huggingface_pretrained_from_composer_checkpoint(_save(model, tmp_path / "c.pt"), folder)
    torch.save((tokens, model.model(tokens).logits), tmp_path / "logits.pt")
    program = f"""
import sys, torch
sys.modules["llmfoundry"] = sys.modules["composer"] = None
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(folder)!r}, trust_remote_code=True).eval()
tokens, logits = torch.load({str(tmp_path / "logits.pt")!r})
print((model(tokens).logits - logits).abs().max().item())
"""
    assert _run_elsewhere(program, tmp_path) == 0


def test_loading_without_the_code_says_what_to_do(converted: Path) -> None:
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        AutoModelForCausalLM.from_pretrained(converted)


def test_our_class_reads_the_folder(converted: Path, golden: Path) -> None:
    from llmfoundry.models.mpt.causal_lm import MPTForCausalLM

    arrays = np.load(golden / "checkpoints" / "hf_logits.npz")
    for folder in (converted, golden / "checkpoints" / "hf_folder"):
        model = MPTForCausalLM.from_pretrained(folder).eval()
        logits = model(torch.tensor(arrays["input_ids"])).logits
        torch.testing.assert_close(logits, torch.tensor(arrays["logits"]), atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"attn_config": {"attn_impl": "torch", "alibi": True, "clip_qkv": 1, "softmax_scale": 0.3}},
        {"norm_eps": 1e-3, "norm_type": "layernorm"},
        {"ffn_config": {"ffn_type": "mptmlp", "ffn_act_fn": {"name": "gelu"}}},
    ],
)
def test_transformers_own_class(changes: dict[str, Any], tokenizer: Any, tmp_path: Path) -> None:
    model = _random_model(tokenizer, **json.loads(json.dumps({**EXPRESSIBLE, **changes})))
    folder = tmp_path / "hf"
    write_huggingface_pretrained_from_composer_checkpoint(_save(model, tmp_path / "c.pt"), folder)
    assert not list(folder.glob("*.py"))
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert type(theirs) is MptForCausalLM
    tokens = torch.randint(0, 384, (2, 20))
    torch.testing.assert_close(
        theirs(tokens).logits, model.model(tokens).logits, atol=1e-5, rtol=1e-5
    )
    mask = torch.ones_like(tokens)
    mask[1, :9] = 0
    prompts = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    written = theirs.generate(tokens, **prompts)
    assert torch.equal(written, model.generate(tokens, **prompts))


@pytest.mark.parametrize(
    "changes",
    [
        {"no_bias": False},
        {"attention_bias": True},
        {"expansion_ratio": 2},
        {"logit_scale": 0.5},
        {"norm_type": "rmsnorm"},
        {"final_logit_softcapping": 3.0},
        {"head_dim": 8},
        {"fuse_norm_attn_norm": True},
        {"ffn_config": {"ffn_type": "mptglu"}},
        {"ffn_config": {"ffn_type": "mptmlp", "ffn_act_fn": {"name": "silu"}}},
        {"attn_config": {"attn_impl": "torch"}},
        {"attn_config": {"attn_impl": "torch", "rope": True, "rope_impl": "hf"}},
        {"attn_config": {"alibi": True, "alibi_bias_max": 4}},
        {"attn_config": {"alibi": True, "qk_ln": True}},
        {"attn_config": {"alibi": True, "sliding_window_size": 4}},
        {"attn_config": {"alibi": True, "attn_type": "multiquery_attention"}},
        {"attn_config": {"alibi": True, "value_embeddings": [0]}},
        {"attn_config": {"alibi": True, "attn_temperature_tuning": {"attn_scale": 0.1}}},
    ],
)
def test_what_transformers_cannot_express(changes: dict[str, Any]) -> None:
    assert why_not_transformers(MPTConfig(**json.loads(json.dumps({**EXPRESSIBLE, **changes}))))


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_half_precision(
    precision: str, dtype: torch.dtype, tokenizer: Any, tmp_path: Path, converted: Path
) -> None:
    for name, kwargs in {"own": EXPRESSIBLE, "code": {**EXPRESSIBLE, "no_bias": False}}.items():
        path = _save(_random_model(tokenizer, **json.loads(json.dumps(kwargs))), tmp_path / "c.pt")
        sizes = {}
        for wanted in ("fp32", precision):
            folder = tmp_path / f"{name}-{wanted}"
            write_huggingface_pretrained_from_composer_checkpoint(
                path, folder, output_precision=wanted
            )
            sizes[wanted] = (folder / "model.safetensors").stat().st_size
        assert sizes[precision] < 0.6 * sizes["fp32"]
        weights = load_file(tmp_path / f"{name}-{precision}" / "model.safetensors")
        assert {tensor.dtype for tensor in weights.values()} == {dtype}
        config = json.loads((tmp_path / f"{name}-{precision}" / "config.json").read_text())
        assert config["dtype"] == str(dtype).removeprefix("torch.")


def test_weights_are_split_by_size(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    write_huggingface_pretrained_from_composer_checkpoint(
        str(checkpoint), folder, max_shard_size="40KB"
    )
    assert len(list(folder.glob("model-*.safetensors"))) > 2
    assert (folder / "model.safetensors.index.json").exists()


def test_tied_weights_are_stored_once(converted: Path) -> None:
    assert "lm_head.weight" not in load_file(converted / "model.safetensors")


def test_renamed_weights_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    content = torch.load(checkpoint, weights_only=False)
    weights = content["state"]["model"]
    weights["model.transformer.norm_g.weight"] = weights.pop("model.transformer.norm_f.weight")
    torch.save(
        {"state": {key: content["state"][key] for key in ("model", "integrations")}},
        tmp_path / "c.pt",
    )
    with pytest.raises(RuntimeError, match=r"norm_f\.weight.*norm_g\.weight"):
        write_huggingface_pretrained_from_composer_checkpoint(tmp_path / "c.pt", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_optional_configuration_keys_may_lack(checkpoint: Path, tmp_path: Path) -> None:
    content = torch.load(checkpoint, weights_only=False)
    state = {key: content["state"][key] for key in ("model", "integrations")}
    config = state["integrations"]["huggingface"]["model"]["config"]["content"]
    for key in ("block_overrides", "head_dim", "final_logit_softcapping", "attention_bias"):
        del config[key]
    for key in ("kv_dim", "nope", "qk_gn", "attn_temperature_tuning", "rope_hf_config"):
        del config["attn_config"][key]
    config |= {"verbose": 0, "torch_dtype": "bfloat16"}
    config["attn_config"] |= {"prefix_lm": False}
    config["init_config"] |= {"verbose": 0}
    torch.save({"state": state}, tmp_path / "c.pt")
    write_huggingface_pretrained_from_composer_checkpoint(tmp_path / "c.pt", tmp_path / "hf")
    assert (tmp_path / "hf" / "config.json").exists()


def test_refusals(checkpoint: Path, tmp_path: Path) -> None:
    write = write_huggingface_pretrained_from_composer_checkpoint
    with pytest.raises(FileNotFoundError, match="no .metadata"):
        write(str(tmp_path), tmp_path / "hf")
    with pytest.raises(FileExistsError):
        write(str(checkpoint), tmp_path)
    with pytest.raises(ValueError, match="output_precision"):
        write(str(checkpoint), tmp_path / "hf", output_precision="fp8")
    torch.save({"model": {}}, tmp_path / "c.pt")
    with pytest.raises(RuntimeError, match="no entry 'state'"):
        write(str(tmp_path / "c.pt"), tmp_path / "hf")
    torch.save({"state": {"model": {}}}, tmp_path / "c.pt")
    with pytest.raises(RuntimeError, match="HuggingFaceModel"):
        write(str(tmp_path / "c.pt"), tmp_path / "hf")


def test_command(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert_composer_to_hf(
        Namespace(
            composer_path=str(checkpoint),
            hf_output_path=str(tmp_path / "hf"),
            local_checkpoint_save_location=str(tmp_path / "copy.pt"),
            output_precision="fp32",
            hf_repo_for_upload=None,
            test_uploaded_model=False,
            trust_remote_code=False,
        )
    )
    assert "logits equal the checkpoint's" in capsys.readouterr().out
    assert (tmp_path / "copy.pt").read_bytes() == checkpoint.read_bytes()


def test_from_store_to_store(checkpoint: Path, s3: Proxy, tmp_path: Path) -> None:
    store = S3ObjectStore("bucket")
    store.upload_object("runs/ep1.pt", checkpoint)
    (tmp_path / "pointer").write_text("runs/ep1.pt")
    store.upload_object("runs/latest.pt.symlink", tmp_path / "pointer")
    args = Namespace(
        composer_path="s3://bucket/runs/latest.pt",
        hf_output_path="s3://bucket/models/mpt/",
        local_checkpoint_save_location=str(tmp_path / "copy.pt"),
        output_precision="fp32",
        hf_repo_for_upload=None,
        test_uploaded_model=False,
        trust_remote_code=False,
    )
    s3.seen.clear()
    s3.faults += [("PUT", "503"), ("GET", "truncated")]
    convert_composer_to_hf(args)
    assert s3.faults == []
    assert (tmp_path / "copy.pt").read_bytes() == checkpoint.read_bytes()
    puts = [path for method, path, _headers in s3.seen if method == "PUT"]
    assert puts[-1] == "/bucket/models/mpt/config.json"
    write_huggingface_pretrained_from_composer_checkpoint(str(checkpoint), tmp_path / "here")
    names = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert [n.removeprefix("models/mpt/") for n in store.list_objects("models/mpt/")] == names
    for name in names:
        store.download_object(f"models/mpt/{name}", tmp_path / "there" / name)
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    with pytest.raises(FileExistsError, match="s3://bucket/models/mpt/ exists"):
        convert_composer_to_hf(args)
    args.hf_output_path, args.composer_path = "s3://bucket/models/other", "s3://bucket/nothing.pt"
    with pytest.raises(FileNotFoundError, match="s3://bucket/nothing.pt not found"):
        convert_composer_to_hf(args)
    assert store.list_objects("models/other") == []
