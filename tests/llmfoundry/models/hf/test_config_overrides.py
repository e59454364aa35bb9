"""Overrides of a transformers configuration: what changes, what stays, what is refused."""

from typing import Any

import pytest
from transformers import GPT2Config, LlamaConfig, LlavaConfig, Qwen3Config

from llmfoundry.models.hf.config_overrides import get_hf_config_value, set_config_overrides


def test_a_value_and_its_alias() -> None:
    config = GPT2Config()
    set_config_overrides(config, {"n_embd": 32, "num_hidden_layers": 3})
    assert (config.hidden_size, config.n_layer) == (32, 3)
    assert get_hf_config_value(config, "n_layer") == 3
    assert get_hf_config_value({"n_layer": 4}, "n_layer") == 4
    assert get_hf_config_value(config, "no_such_key") is None


def test_siblings_below_a_mapping_stay() -> None:
    config = LlamaConfig(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5})
    set_config_overrides(config, {"rope_parameters": {"factor": 4.0}})
    assert config.rope_parameters == {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}
    # Another kind of scaling has other keys; the base stays.
    set_config_overrides(config, {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}})
    assert config.rope_parameters == {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 5e5}


def test_a_configuration_within_is_changed_by_key() -> None:
    config: Any = LlavaConfig()
    layers = config.text_config.num_hidden_layers
    set_config_overrides(config, {"text_config": {"vocab_size": 77}})
    assert (config.text_config.vocab_size, config.text_config.num_hidden_layers) == (77, layers)


def test_kinds_of_layers_follow_their_number() -> None:
    config: Any = Qwen3Config(num_hidden_layers=4, use_sliding_window=True, max_window_layers=2)
    kinds = list(config.layer_types)
    set_config_overrides(config, {"num_hidden_layers": 3})
    assert config.layer_types == kinds[:3]
    with pytest.raises(ValueError, match="num_hidden_layers=9 is more than the 3 layers"):
        set_config_overrides(config, {"num_hidden_layers": 9})
    alike = Qwen3Config(num_hidden_layers=2)
    set_config_overrides(alike, {"num_hidden_layers": 5})
    assert alike.layer_types == ["full_attention"] * 5


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"vocab_sise": 9}, r'"vocab_sise" to override \(vocab_sise: 9\).*Did you'),
        ({"rope_parameters": {"factr": 2}}, r"not have keys \['factr'\].*rope_theta"),
        ({"text_config": 3}, "text_config to be a mapping"),
        ({"text_config": {"vocab": 3}}, 'not have attribute "vocab"'),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(overrides: dict[str, Any], words: str) -> None:
    config = LlavaConfig() if "text_config" in overrides else LlamaConfig()
    with pytest.raises(ValueError, match=words):
        set_config_overrides(config, overrides)
