"""Every recipe that ships parses, builds, and has the size that its head says."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from llmfoundry.config.loading import load_recipe
from llmfoundry.config.parse import parse_train_config
from llmfoundry.models.hf import ComposerHFCausalLM
from llmfoundry.models.mpt import ComposerMPTCausalLM
from tests.llmfoundry.models.hf.tiny import save

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "yamls").glob("mpt-*.yaml"))
FINETUNING = sorted((ROOT / "yamls" / "finetune").glob("*.yaml"))
# As published with the last upstream releases, tied embeddings counted once.
PUBLISHED = {
    "mpt-125m": 125_311_488,
    "mpt-350m": 355_985_408,
    "mpt-760m": 760_470_528,
    "mpt-1b": 1_315_950_592,
    "mpt-3b": 2_651_837_440,
    "mpt-7b": 6_658_859_008,
    "mpt-13b": 12_853_954_560,
    "mpt-30b": 29_975_214_080,
    "mpt-70b": 64_862_437_376,
}


def shape(value: Any) -> Any:
    """The keys of a recipe without its values."""
    return {key: shape(inner) for key, inner in value.items()} if isinstance(value, dict) else None


def test_all_sizes_are_there() -> None:
    assert {path.stem for path in RECIPES} == {
        *PUBLISHED,
        "mpt-small-cpu",
        "mpt-tiny-cpu",
        "mpt-tiny-moe-cpu",
    }


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_it_parses_and_builds(path: Path) -> None:
    config = parse_train_config(load_recipe(path))
    settings = dict(config.model)
    assert settings.pop("name") == "mpt_causal_lm"
    assert settings["max_seq_len"] == config.max_seq_len
    settings["init_device"] = "meta"
    with torch.device("meta"):
        model = ComposerMPTCausalLM(tokenizer=None, **settings)
    count = sum(parameter.numel() for parameter in model.parameters())
    said = re.search(r"([\d,]+) parameters", path.read_text("utf-8"))
    assert said is not None
    assert count == int(said.group(1).replace(",", ""))
    assert count == PUBLISHED.get(path.stem, count)


@pytest.mark.parametrize("path", FINETUNING, ids=lambda path: path.stem)
def test_it_parses_and_its_adapters_fit(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    settings = dict(parse_train_config(load_recipe(path)).model)
    assert settings.pop("name") == "hf_causal_lm"
    settings["pretrained_model_name_or_path"] = save("llama_tied", tmp_path)
    model = ComposerHFCausalLM(None, **settings)
    assert model.using_peft and all("lora_" in name for name in model.state_dict())
    old = ROOT / "scripts" / "train" / "yamls" / "finetune" / path.name
    assert old.resolve() == path.resolve()


def test_they_differ_only_in_their_numbers() -> None:
    family = [parse_train_config(load_recipe(path)) for path in RECIPES if path.stem in PUBLISHED]
    shapes = [shape(vars(config)) for config in family]
    assert all(one == shapes[0] for one in shapes)
    for key in ("tokenizer", "scheduler", "algorithms", "callbacks", "precision", "seed"):
        assert all(getattr(config, key) == getattr(family[0], key) for config in family), key


def test_the_old_path_leads_to_the_same_file() -> None:
    old = ROOT / "scripts" / "train" / "yamls" / "pretrain" / "mpt-125m.yaml"
    assert old.resolve() == (ROOT / "yamls" / "mpt-125m.yaml").resolve()
