"""Embeddings trained whole beside adapters, for new tokens too, and adapters out of folders."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from composer.checkpoint.monolithic import safe_torch_load
from composer.models import HuggingFaceModel
from composer.models.hf_metadata import get_peft_config_from_composer_state_dict
from llmfoundry.command_utils.convert_composer_to_hf import (
    write_huggingface_pretrained_from_composer_checkpoint as write_hf,
)
from llmfoundry.models import ComposerHFCausalLM
from llmfoundry.models.hf.adapters import merge_adapters, restore_adapters, write_adapter_folder
from tests.llmfoundry.models.hf.test_adapters import LORA, _equal, _hf, _logits, _mpt, _train
from tests.llmfoundry.models.hf.tiny import build, save
from tests.llmfoundry.tiny_tokenizer import train_tokenizer

peft = pytest.importorskip("peft")
pytestmark = [
    # peft asks transformers for a name that is being replaced.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:callbacks. _Losses:UserWarning"),
]

SAVED: dict[str, Any] = {"save_filename": "ba{batch}.pt", "save_interval": "2ba"}


@pytest.mark.parametrize("whole", [["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]])
def test_an_embedding_that_is_the_output_layer_too_stays_so(whole: Any, tmp_path: Path) -> None:
    base = save("llama_tied", tmp_path / "base")
    model = _hf(base, peft_config=LORA | {"modules_to_save": whole})
    _train(model, "4ba", save_folder=str(tmp_path), **SAVED)
    expected = _logits(model.eval().model)
    assert (expected - _logits(build("llama_tied"))).abs().max() > 0.1
    saved = safe_torch_load(str(tmp_path / "ba4.pt"))
    config, weights = get_peft_config_from_composer_state_dict(saved), saved["state"]["model"]
    assert config is not None
    write_adapter_folder(tmp_path / "adapters", config, weights, base_name=base)
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / "adapters"))
    _equal(_logits(theirs.eval()), expected)
    loaded = _hf(base, pretrained_lora_id_or_path=str(tmp_path / "adapters"))
    _equal(_logits(loaded.eval().model), expected)
    restored = restore_adapters(build("llama_tied"), config, weights)
    _equal(_logits(restored), expected)
    merged = merge_adapters(restored)
    _equal(_logits(merged), expected)
    assert merged.lm_head.weight is merged.model.embed_tokens.weight
    again = _hf(base, peft_config=LORA | {"modules_to_save": whole})
    _train(again, "4ba", load_path=str(tmp_path / "ba2.pt"))
    _equal(_logits(again.eval().model), expected)


def test_an_embedding_that_peft_does_not_keep_tied_is_refused(tmp_path: Path) -> None:
    base = save("gpt2", tmp_path / "base")
    with pytest.raises(ValueError, match=r"transformer.wte.*are one weight.*tie_word_embeddings"):
        _hf(base, peft_config=LORA | {"modules_to_save": ["wte"]})


@pytest.mark.filterwarnings("ignore:Could not find a config file in:UserWarning")
@pytest.mark.parametrize("kind", ["llama", "llama_tied"])
def test_new_tokens_go_all_the_way(kind: str, tmp_path: Path) -> None:
    tokenizer, base = train_tokenizer(), save(kind, tmp_path / "base")
    both: dict[str, Any] = LORA | {"modules_to_save": ["embed_tokens", "lm_head"]}

    def grown(peft_config: Any = both, **settings: Any) -> Any:
        return ComposerHFCausalLM(
            tokenizer,
            base,
            allow_embedding_resizing=True,
            use_train_metrics=False,
            peft_config=peft_config,
            **settings,
        )

    if kind == "llama":
        with pytest.raises(ValueError, match="of lm_head would stay as they were drawn"):
            grown(LORA | {"modules_to_save": ["embed_tokens"]})
    torch.manual_seed(1)
    model = grown()
    _train(model, "4ba", save_folder=str(tmp_path), **SAVED)
    expected = _logits(model.eval().model)
    assert expected.shape[-1] == len(tokenizer) > 96
    torch.manual_seed(2)  # other fresh rows, which are replaced
    again = grown()
    _train(again, "4ba", load_path=str(tmp_path / "ba2.pt"))
    _equal(_logits(again.eval().model), expected)
    write_hf(str(tmp_path / "ba4.pt"), tmp_path / "merged", merge_adapters=True)
    _equal(_logits(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")), expected)
    config = model.model.peft_config["default"]
    write_adapter_folder(tmp_path / "adapters", config, model.state_dict(), base_name=base)
    loaded = grown(None, pretrained_lora_id_or_path=str(tmp_path / "adapters"))
    _equal(_logits(loaded.eval().model), expected)


def test_one_end_of_a_plain_model_is_not_enough() -> None:
    tokenizer, tied = train_tokenizer(), {"ensure_weight_tying": True}
    lora = {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}
    with pytest.raises(ValueError, match="of lm_head would stay as they were drawn"):
        HuggingFaceModel(
            build("llama_tied"),
            tokenizer,
            allow_embedding_resizing=True,
            peft_config=peft.LoraConfig(**lora),
        )
    config = peft.LoraConfig(**lora, **tied)
    settings: dict[str, Any] = {"allow_embedding_resizing": True, "peft_config": config}
    model = HuggingFaceModel(build("llama_tied"), tokenizer, **settings).model
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    assert "base_model.model.model.embed_tokens.modules_to_save.default.weight" in trained
    with pytest.raises(ValueError, match="which has adapters already"):
        adapted = peft.get_peft_model(build("llama"), peft.LoraConfig(target_modules=["q_proj"]))
        HuggingFaceModel(adapted, tokenizer, allow_embedding_resizing=True)


def test_adapters_that_are_not_there_are_refused(tmp_path: Path) -> None:
    base, adapters = save("llama", tmp_path / "base"), str(tmp_path / "adapters")
    _hf(base, peft_config=LORA).model.save_pretrained(adapters)
    file = tmp_path / "adapters" / "adapter_model.safetensors"
    weights = load_file(file)
    name = next(iter(weights))
    save_file({key: each for key, each in weights.items() if key != name}, file)
    with pytest.raises(ValueError, match=f"Missing: .*{name}"):
        _hf(base, pretrained_lora_id_or_path=adapters)
    with pytest.raises(ValueError, match="init_device: meta do not go together.*mixed or cpu"):
        _hf(base, pretrained_lora_id_or_path=adapters, init_device="meta", pretrained=False)
    with pytest.raises(ValueError, match="init_device: meta do not go together"):
        _mpt(pretrained_lora_id_or_path=adapters, init_device="meta")
    other = peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[])
    peft.get_peft_model(build("llama"), other).save_pretrained(tmp_path / "ia3")
    with pytest.raises(ValueError, match="only LORA is supported"):
        _hf(base, pretrained_lora_id_or_path=str(tmp_path / "ia3"))


def test_a_frozen_embedding_that_is_looked_up_saves_no_work(tmp_path: Path) -> None:
    base, batch = save("llama", tmp_path / "base"), {"input_ids": torch.zeros(2, 8)}
    whole, adapted = _hf(base), _hf(base, peft_config=LORA)
    frozen = sum(each.numel() for each in whole.parameters()) - 96 * 16
    trained = sum(each.numel() for each in adapted.parameters() if each.requires_grad)
    difference = whole.flops_per_batch(batch) - adapted.flops_per_batch(batch)
    assert difference == 2 * 2 * 8 * (frozen - 3 * trained)
