"""The model of the package becomes a folder that transformers loads; bad input is refused."""

from pathlib import Path

import pytest

from llmfoundry.command_utils.data_prep.fetch_smollm2 import fetch_smollm2, hf_name


def test_names_are_those_of_transformers() -> None:
    assert hf_name("token_embd.weight") == "model.embed_tokens.weight"
    assert hf_name("blk.29.ffn_down.weight") == "model.layers.29.mlp.down_proj.weight"


def test_a_folder_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="holds other files and no model"):
        fetch_smollm2(str(tmp_path))
    with pytest.raises(ValueError, match="dtype='int8' must be one of bfloat16, float16, float32"):
        fetch_smollm2(str(tmp_path), "int8")
    (tmp_path / "config.json").touch()
    assert fetch_smollm2(str(tmp_path)) == tmp_path
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.slow
def test_the_model_writes_english(smollm2: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    assert sum(each.numel() for each in model.parameters()) == 134_515_008
    assert tokenizer.tokenize("2026") == ["2", "0", "2", "6"]
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    written = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    answer = tokenizer.decode(written[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer == "The capital of France is Paris."
