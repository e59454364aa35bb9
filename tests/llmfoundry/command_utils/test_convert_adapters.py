"""Checkpoints with adapters: a folder of them for peft, or the model with them in its weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, T5Config, T5ForConditionalGeneration

from composer.models import HuggingFaceModel
from llmfoundry.command_utils.convert_composer_to_hf import (
    write_huggingface_pretrained_from_composer_checkpoint as write_hf,
)
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from tests.llmfoundry.models.hf import tiny
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

peft = pytest.importorskip("peft")
pytestmark = [
    # peft asks transformers for a name that is being replaced.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),
    # peft cannot ask the hub whether a base model without a name has changed its vocabulary.
    pytest.mark.filterwarnings("ignore:Could not find a config file in:UserWarning"),
]


def _adapted(
    model: Any,
    targets: list[str],
    task_type: str = "CAUSAL_LM",
    fan_in_fan_out: bool = False,
    **settings: Any,
) -> HuggingFaceModel:
    torch.manual_seed(2)
    config = peft.LoraConfig(
        task_type=task_type,
        r=2,
        target_modules=targets,
        init_lora_weights=False,
        fan_in_fan_out=fan_in_fan_out,
    )
    return HuggingFaceModel(model, peft_config=config, **settings).eval()


def _save(model: HuggingFaceModel, path: Path) -> Path:
    integrations = {"huggingface": model.get_metadata(), "sum_of_base": model.sum_of_base()}
    torch.save({"state": {"model": model.state_dict(), "integrations": integrations}}, path)
    return path


@torch.no_grad()
def _logits(model: Any) -> torch.Tensor:
    return model(input_ids=tiny.rows()["input_ids"]).logits


@pytest.mark.parametrize("with_base", [False, True])
def test_B97_of_a_llama(with_base: bool, tmp_path: Path) -> None:
    base = tiny.save("llama", tmp_path / "base")
    adapted = _adapted(
        AutoModelForCausalLM.from_pretrained(base),
        ["q_proj", "down_proj"],
        should_save_peft_only=not with_base,
    )
    path = _save(adapted, tmp_path / "c.pt")
    expected = _logits(adapted.model)
    write_hf(str(path), tmp_path / "adapters", base_model=base)
    names = {file.name for file in (tmp_path / "adapters").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapters")
    assert torch.equal(_logits(loaded), expected)
    write_hf(str(path), tmp_path / "merged", merge_adapters=True)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(_logits(merged), expected, atol=1e-5, rtol=1e-5)
    of_base = AutoModelForCausalLM.from_pretrained(base)
    assert not torch.allclose(_logits(merged), _logits(of_base), atol=1e-2)
    write_hf(str(path), tmp_path / "half", output_precision="bf16", merge_adapters=True)
    weights = load_file(tmp_path / "half" / "model.safetensors").values()
    assert {weight.dtype for weight in weights} == {torch.bfloat16}


def test_of_an_mpt(tmp_path: Path) -> None:
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 64, "vocab_size": 96}
    model = MPTForCausalLM(MPTConfig(**sizes, attn_config={"attn_impl": "torch", "rope": True}))
    base = HuggingFaceModel(model)
    write_hf(str(_save(base, tmp_path / "base.pt")), tmp_path / "base")
    adapted = _adapted(model, ["Wqkv"])
    path = _save(adapted, tmp_path / "c.pt")
    write_hf(str(path), tmp_path / "hf", merge_adapters=True, base_model=str(tmp_path / "base"))
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    torch.testing.assert_close(_logits(merged), _logits(adapted.model), atol=1e-5, rtol=1e-5)


def test_a_folder_of_adapters(tmp_path: Path) -> None:
    base = tiny.save("llama", tmp_path / "base", vocab_size=300)
    train_tokenizer().save_pretrained(base)
    adapted = _adapted(AutoModelForCausalLM.from_pretrained(base), ["q_proj", "v_proj"])
    adapted.model.save_pretrained(tmp_path / "adapters")
    folder = str(tmp_path / "adapters")
    with pytest.raises(ValueError, match="With merge_adapters it becomes"):
        write_hf(folder, tmp_path / "hf")
    _, tokenizer = write_hf(folder, tmp_path / "hf", merge_adapters=True)
    assert tokenizer is not None and (tmp_path / "hf" / "tokenizer.json").exists()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    torch.testing.assert_close(_logits(merged), _logits(adapted.model), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_base_of_the_same_sizes_is_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    base = tiny.save("llama", tmp_path / "base")
    other = tiny.save("llama", tmp_path / "other", seed=4)
    adapted = _adapted(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), ["q_proj"])
    path = str(_save(adapted, tmp_path / "c.pt"))
    with pytest.raises(ValueError, match="another base than .*other.*base_model"):
        write_hf(path, tmp_path / "hf", merge_adapters=True, base_model=other)
    assert not (tmp_path / "hf").exists()
    write_hf(path, tmp_path / "hf", merge_adapters=True, base_model=base)
    merged = load_file(tmp_path / "hf" / "model.safetensors")
    of_base = AutoModelForCausalLM.from_pretrained(base).state_dict()
    assert {n for n, w in merged.items() if not torch.equal(w, of_base[n])} == {
        f"model.layers.{layer}.self_attn.q_proj.weight" for layer in range(2)
    }


@pytest.mark.parametrize("kind", ["t5", "short"])
def test_of_models_that_are_called_otherwise(kind: str, tmp_path: Path) -> None:
    """An encoder asks for two inputs, and few learned positions for short ones."""
    if kind == "short":
        base, targets, task = tiny.build("gpt2", n_positions=8), ["c_attn"], "CAUSAL_LM"
    else:
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        config = T5Config(vocab_size=96, decoder_start_token_id=0, **sizes)
        base, targets, task = T5ForConditionalGeneration(config), ["q", "v"], "SEQ_2_SEQ_LM"
    base.save_pretrained(tmp_path / "base")
    adapted = _adapted(base, targets, task, fan_in_fan_out=kind == "short")
    path = str(_save(adapted, tmp_path / "c.pt"))
    write_hf(path, tmp_path / "hf", merge_adapters=True, base_model=str(tmp_path / "base"))
    merged = type(base).from_pretrained(tmp_path / "hf")
    tokens = torch.arange(3, 9)[None]
    inputs = {"input_ids": tokens, **({"decoder_input_ids": tokens} if kind == "t5" else {})}
    with torch.no_grad():
        expected, found = adapted.model(**inputs).logits, merged(**inputs).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_refusals(tmp_path: Path) -> None:
    adapted = _adapted(tiny.build("llama"), ["q_proj"])
    path = str(_save(adapted, tmp_path / "c.pt"))
    with pytest.raises(ValueError, match="Give its folder or hub name as base_model"):
        write_hf(path, tmp_path / "hf", merge_adapters=True)
    with pytest.raises(RuntimeError, match="mismatched_keys.*embed_tokens"):
        other = tiny.save("llama", tmp_path / "other", hidden_size=32)
        write_hf(path, tmp_path / "hf", merge_adapters=True, base_model=other)
    content = torch.load(path, weights_only=False)
    weights = content["state"]["model"]
    name = next(iter(weights))
    weights[name.replace("q_proj", "z_proj")] = weights.pop(name)
    torch.save(content, path)
    with pytest.raises(RuntimeError, match=r"Missing: .*q_proj.*Not part of them: .*z_proj"):
        write_hf(path, tmp_path / "hf")
    plain = str(_save(HuggingFaceModel(tiny.build("llama")), tmp_path / "plain.pt"))
    with pytest.raises(ValueError, match="compare_logits has no effect"):
        write_hf(path, tmp_path / "hf", compare_logits=True)
    for settings in ({"merge_adapters": True}, {"base_model": "x"}):
        with pytest.raises(ValueError, match="has no adapters"):
            write_hf(plain, tmp_path / "hf", **settings)
    assert not (tmp_path / "hf").exists()
