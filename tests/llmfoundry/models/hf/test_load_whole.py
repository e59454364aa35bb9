"""Weights that the files do not have are an error; the language model in a larger one is found."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from llmfoundry.command_utils.convert_composer_to_hf import (
    write_huggingface_pretrained_from_composer_checkpoint as write_hf,
)
from llmfoundry.command_utils.convert_hf_to_composer import (
    write_composer_checkpoint_from_huggingface as write_composer,
)
from llmfoundry.models.hf.hf_causal_lm import ComposerHFCausalLM
from llmfoundry.models.hf.load_whole import load_whole
from tests.llmfoundry.models.hf import tiny
from tests.llmfoundry.tiny_tokenizer import train_tokenizer


def _seeing(folder: Path) -> Any:
    eyes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    eyes |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(
        text_config=dict(tiny.SIZES | {"vocab_size": 300, "head_dim": 8}),
        vision_config=eyes,
        mm_tokens_per_image=4,
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    model.save_pretrained(folder)
    train_tokenizer().save_pretrained(folder)
    return model


def test_the_language_model_in_one_that_sees(tmp_path: Path) -> None:
    whole = _seeing(tmp_path / "hf")
    tokens = tiny.rows()["input_ids"]
    expected = whole.eval()(input_ids=tokens).logits
    trained = ComposerHFCausalLM(train_tokenizer(), str(tmp_path / "hf"), use_train_metrics=False)
    torch.testing.assert_close(trained.model.eval()(input_ids=tokens).logits, expected)
    write_composer(str(tmp_path / "hf"), str(tmp_path / "c.pt"))
    saved = torch.load(tmp_path / "c.pt", weights_only=False)["state"]["model"]
    assert saved.keys() == trained.state_dict().keys()
    assert all(torch.equal(saved[name], each) for name, each in trained.state_dict().items())
    write_hf(str(tmp_path / "c.pt"), tmp_path / "back")
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    torch.testing.assert_close(back(input_ids=tokens).logits, expected)


def test_missing_and_misshapen_weights_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    tiny.save("llama", folder)
    weights = load_file(folder / "model.safetensors")
    norm = weights.pop("model.norm.weight")
    more = {**weights, "model.other.weight": norm.clone()}
    save_file(more, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RuntimeError, match=r"missing_keys': \['model\.norm\.weight'\]"):
        ComposerHFCausalLM(train_tokenizer(size=96), str(folder))
    more["model.norm.weight"] = norm
    save_file(more, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RuntimeError, match=r"unexpected_keys': \['model\.other\.weight'\]"):
        load_whole(transformers.AutoModelForCausalLM, folder)
    load_whole(transformers.AutoModelForCausalLM, folder, may_have_more=True)
    more["model.norm.weight"] = norm[:3].clone()
    save_file(more, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RuntimeError, match=r"mismatched_keys.*model\.norm\.weight"):
        load_whole(transformers.AutoModelForCausalLM, folder, may_have_more=True)
