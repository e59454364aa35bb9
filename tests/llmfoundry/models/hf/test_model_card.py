"""The page beside a saved model."""

import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch

from llmfoundry.models.hf.model_card import ModelCard, licence_of

RECIPE = {
    "model": {"name": "mpt_causal_lm", "d_model": 16},
    "train_loader": {
        "name": "text",
        "dataset": {
            "hf_name": "me/texts",
            "remote": "https://me:given7@host/x?sig=given8",
            "hf_kwargs": {"token": "given9"},
        },
    },
    "tokenizer": {"name": "t", "kwargs": {"token": "given1", "eos_token": "<end>"}},
    "optimizer": {"name": "decoupled_adamw", "lr": 1e-3},
    "algorithms": {"a": [{"API_KEY": 1234567, "auth_token": True, "max_tokens": 8}]},
}
COMMAND = [
    "/some/python",
    "train.py",
    "recipe.yaml",
    "x=a b",
    "loggers.wandb.init_kwargs.api_key=given2",
    "--hf_token=given3",
    "--hf-token",
    "given4",
    "--eos_token",
    "<end>",
    "+a={secret_key: given5, b: 1}",
    '{"password": "x=given6"}',
]


def test_it_tells_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", COMMAND)
    card = ModelCard(
        title="run",
        summary="A model.",
        license="apache-2.0",
        base_model="me/base",
        metrics={"metrics/eval/LanguagePerplexity": 12.3456789},
        recipe=RECIPE,
    )
    (tmp_path / "README.md").write_text(card.render())
    read = huggingface_hub.ModelCard.load(tmp_path / "README.md")
    assert read.data.to_dict() == {
        "license": "apache-2.0",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["llm-foundry"],
        "base_model": "me/base",
        "datasets": ["me/texts"],
    }
    text = read.text
    assert "| metrics/eval/LanguagePerplexity | 12.3457 |" in text
    assert "python train.py recipe.yaml 'x=a b'" in text
    assert "name: decoupled_adamw" in text and "d_model: 16" in text
    assert f"| torch | {torch.__version__.partition('+')[0]}" in text
    assert "given" not in text and "1234567" not in text
    assert "eos_token: <end>" in text and "auth_token: true" in text and "max_tokens: 8" in text
    assert "init_kwargs.api_key=***' '--hf_token=***' --hf-token '***' --eos_token '<end>'" in text
    assert RECIPE["train_loader"]["dataset"]["hf_kwargs"] == {"token": "given9"}


def test_without_a_recipe_it_says_so() -> None:
    text = ModelCard(title="run", summary="A model.").render()
    assert text.count("Unknown: the run was not started from a recipe.") == 3
    assert "license: unknown" in text and "Base model: none" in text


def test_the_licence_is_the_base_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert licence_of(str(tmp_path)) is None
    assert licence_of("me/never-fetched") is None
    (tmp_path / "README.md").write_text("no metadata\n")
    assert licence_of(str(tmp_path)) is None
    for malformed in ("---\nlicense: [mit\n---\n", "---\n- mit\n---\n"):
        (tmp_path / "README.md").write_text(malformed)
        assert licence_of(str(tmp_path)) is None
    (tmp_path / "README.md").write_bytes(b"---\nlicense: \xff\n---\n")
    assert licence_of(str(tmp_path)) is None
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    assert licence_of(str(tmp_path)) == "mit"
    cached = tmp_path / "models--me--base"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("1234")
    (cached / "snapshots" / "1234").mkdir(parents=True)
    (cached / "snapshots" / "1234" / "README.md").write_text("---\nlicense: gpl-3.0\n---\n")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    card = ModelCard(title="run", summary="A model.", base_model="me/base")
    assert "Licence: gpl-3.0 (the base model's)." in card.render()
