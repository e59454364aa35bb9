"""Generation from a folder: grids, prompt files, left padding, refusals."""

import runpy
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from llmfoundry.command_utils.convert_composer_to_hf import (
    write_huggingface_pretrained_from_composer_checkpoint,
)
from llmfoundry.command_utils.hf_generate import hf_generate, str2bool
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

ROOT = Path(__file__).parents[3]


@pytest.fixture
def folder(golden: Path, tmp_path: Path) -> Path:
    checkpoint = golden / "checkpoints" / "mpt-mid-run-ep1-ba5-rank0.pt"
    write_huggingface_pretrained_from_composer_checkpoint(str(checkpoint), tmp_path / "hf")
    return tmp_path / "hf"


def _args(monkeypatch: pytest.MonkeyPatch, folder: Path, *flags: str) -> Namespace:
    path = ROOT / "scripts" / "inference" / "hf_generate.py"
    monkeypatch.setattr(sys, "argv", [str(path), "-n", str(folder), *flags])
    return runpy.run_path(str(path))["parse_args"]()


def test_batched_equals_alone_with_and_without_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = ["the", "a longer prompt than the other one"]
    greedy = ["--temperature", "0", "--max_new_tokens", "8", "--warmup", "false", "--device", "cpu"]
    batched = hf_generate(_args(monkeypatch, folder, *greedy, "-p", *prompts))
    alone = hf_generate(
        _args(monkeypatch, folder, *greedy, "--max_batch_size", "1", "-p", *prompts)
    )
    uncached = hf_generate(_args(monkeypatch, folder, *greedy, "--use_cache", "no", "-p", *prompts))
    assert batched == alone == uncached
    assert all(batched)


TINY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": TINY,
    "Qwen3": {**TINY, "head_dim": 8},
    "GPT2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "Mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4},
}


@pytest.fixture
def family(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with a small model of one of transformers' families."""
    tokenizer = train_tokenizer()
    config = getattr(transformers, f"{request.param}Config")
    head = "LMHeadModel" if request.param == "GPT2" else "ForCausalLM"
    ids = {"vocab_size": len(tokenizer), "bos_token_id": 0, "eos_token_id": 1}
    model = getattr(transformers, request.param + head)(config(**FAMILIES[request.param], **ids))
    with torch.no_grad():
        for param in model.parameters():
            if param.ndim == 2:  # so that what is written depends on all that was read
                param.normal_(std=0.3)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("family", FAMILIES, indirect=True)
def test_models_of_transformers(
    family: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Field case B82: prompts of 1 and 12 tokens, batched and alone, with and without cache."""
    flags = ["-p", "t", "zzz it was the best of times", "--temperature", "0", "--device", "cpu"]
    flags += ["--max_new_tokens", "16", "--warmup", "no"]
    batched = hf_generate(_args(monkeypatch, family, *flags))
    assert batched == hf_generate(_args(monkeypatch, family, *flags, "--max_batch_size", "1"))
    assert batched == hf_generate(_args(monkeypatch, family, *flags, "--use_cache", "0"))
    others = [
        ["--attn_impl", "torch" if "Mpt" in _config(family) else "eager"],
        ["--repetition_penalty", "9.0"],
        ["--no_repeat_ngram_size", "1"],
        ["--max_seq_len", "3"],
        ["--autocast_dtype", "bf16", "--model_dtype", "float32"],
        ["--do_sample", "no", "--temperature", "1.0"],
        ["--eos_token_id", "5", "--pad_token_id", "6", "--revision", "main"],
        ["--use_auth_token", "no", "--trust_remote_code", "no"],
    ]
    texts = [hf_generate(_args(monkeypatch, family, *flags, *more)) for more in others]
    same = [batched == each for each in texts]
    assert same[0] and same[5] and same[7]
    assert not any(same[1:4]), "these change what is written"
    assert "input_tokens=[1, 3]" in capsys.readouterr().out, "the long prompt was cut to 3"


def _config(folder: Path) -> str:
    return (folder / "config.json").read_text()


@pytest.mark.parametrize("family", ["Mpt"], indirect=True)
def test_an_attention_without_effect_is_refused(
    family: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="^--attn_impl flash has no effect on MptConfig"):
        hf_generate(_args(monkeypatch, family, "--attn_impl", "flash"))


@pytest.mark.parametrize("family", ["Llama"], indirect=True)
def test_the_ends_that_only_the_generation_config_names(
    family: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["-p", "the", "--temperature", "0", "--device", "cpu", "--max_new_tokens", "9"]
    (whole,) = hf_generate(_args(monkeypatch, family, *flags))
    tokenizer = transformers.AutoTokenizer.from_pretrained(family)
    ends = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(whole))[1:]
    transformers.GenerationConfig(eos_token_id=ends).save_pretrained(family)
    (cut,) = hf_generate(_args(monkeypatch, family, *flags))
    assert whole.startswith(cut) and len(cut) < len(whole)
    (same,) = hf_generate(_args(monkeypatch, family, *flags, "--eos_token_id", "1"))
    assert same == whole


@pytest.mark.parametrize("attn_impl", ["torch", "flash"])
def test_the_attention_of_an_exported_mpt(
    folder: Path, attn_impl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--temperature", "0", "--max_new_tokens", "4", "--device", "cpu"]
    expected = hf_generate(_args(monkeypatch, folder, *flags))
    assert expected == hf_generate(_args(monkeypatch, folder, *flags, "--attn_impl", attn_impl))


def test_grid_and_report(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "prompts.txt").write_text("one|two")
    flags = ["-p", f"file::{tmp_path / 'prompts.txt'}", "--prompt-delimiter", "|"]
    flags += ["--temperature", "0", "1.0", "--seed", "1", "2", "--max_new_tokens", "3"]
    flags += ["--model_dtype", "bf16", "--device", "cpu"]
    texts = hf_generate(_args(monkeypatch, folder, *flags))
    assert len(texts) == 2 * 2 * 2
    assert texts[:2] == texts[2:4]  # greedy: the seed does not matter
    out = capsys.readouterr().out
    for part in ("bs=2", "gen_latency=", "ms/tok", "tok/sec", "\033[92mone\033[0m"):
        assert part in out
    assert hf_generate(_args(monkeypatch, folder, *flags)) == texts


def test_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="device_map"):
        hf_generate(_args(monkeypatch, folder, "--device", "cpu", "--device_map", "auto"))
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        patch.setattr("transformers.utils.import_utils.is_accelerate_available", lambda: False)
        with pytest.raises(ValueError, match="'auto' needs accelerate.*--device cuda:0"):
            hf_generate(_args(patch, folder))
    with pytest.raises(RuntimeError, match="Unable to load"):
        hf_generate(_args(monkeypatch, tmp_path / "nothing"))
    assert str2bool("Yes") and not str2bool("f")
    with pytest.raises(ValueError, match="yes or no"):
        str2bool("maybe")
    assert torch.is_grad_enabled()
