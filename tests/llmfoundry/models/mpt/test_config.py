"""The configuration: defaults, nested settings, misspellings, legacy keys, block overrides."""

import copy
from typing import Any

import pytest

from llmfoundry.models.mpt.block_overrides import expand_order, plan_blocks
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.models.utils.config_defaults import attn_config_defaults
from llmfoundry.utils.warnings import ExperimentalWarning, VersionedDeprecationWarning

SMALL: dict[str, Any] = {"d_model": 32, "n_heads": 4, "n_layers": 4}


def test_one_nested_setting_keeps_its_siblings() -> None:
    """Field case B87."""
    config = MPTConfig(**SMALL, attn_config={"rope": True, "rope_dail_config": {"type": "xpos"}})
    expected = copy.deepcopy(attn_config_defaults) | {"rope": True}
    expected["rope_dail_config"]["type"] = "xpos"
    assert config.attn_config == expected
    assert attn_config_defaults["rope_dail_config"]["type"] == "original"
    assert not config.learned_pos_emb


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"attn_config": {"alibbi": True}}, "'alibi'.*Valid keys.*attn_pdrop"),
        ({"attn_config": {"rope_dail_config": {"typ": "xpos"}}}, "'type'"),
        ({"attn_config": {"attn_temperature_tuning": {"floor": 1}}}, "'floor_scale'"),
        ({"init_config": {"init_stdd": 0.1}}, "'init_std'"),
        ({"d_modle": 64}, "'d_model'"),
        ({"expansion_ration": 2}, "'expansion_ratio'"),
    ],
)
def test_misspellings_are_refused(kwargs: dict[str, Any], message: str) -> None:
    """Field case B87."""
    with pytest.raises(TypeError, match=message):
        MPTConfig(**kwargs)


def test_legacy_hub_configuration_is_read() -> None:
    with pytest.warns(VersionedDeprecationWarning, match="triton"):
        config = MPTConfig(
            **SMALL,
            attn_config={"alibi": True, "attn_impl": "triton", "prefix_lm": False},
            init_config={"name": "kaiming_normal_", "verbose": 0},
            no_bias=True,
            torch_dtype="bfloat16",
            tokenizer_name="EleutherAI/gpt-neox-20b",
            verbose=0,
        )
    assert config.attn_config["attn_impl"] == "torch"
    assert config.init_config["name"] == "kaiming_normal_"
    with pytest.raises(NotImplementedError, match="prefix_lm"):
        MPTConfig(attn_config={"prefix_lm": True})


def test_own_keys_that_are_no_parameters_are_kept() -> None:
    config = MPTConfig(**SMALL, activation_checkpointing_target="mptblock", loss_fn="x", name="y")
    assert config.activation_checkpointing_target == "mptblock"
    assert not hasattr(config, "loss_fn")
    again = MPTConfig(**config.to_dict())
    assert again.to_dict() == config.to_dict()
    with pytest.warns(UserWarning, match="Positional information"):
        MPTConfig(**SMALL, learned_pos_emb=False)


def test_llama3_needs_its_keys() -> None:
    scaling = {"type": "llama3", "factor": 8.0}
    with pytest.raises(ValueError, match="low_freq_factor"):
        MPTConfig(attn_config={"rope": True, "rope_impl": "hf", "rope_hf_config": scaling})


def _plan(order: list[Any], overrides: dict[str, Any], **kwargs: Any) -> Any:
    config = MPTConfig(
        **{**SMALL, **kwargs},
        attn_config={"rope": True, "rope_impl": "hf"},
        learned_pos_emb=False,
        block_overrides={"order": order, "overrides": overrides},
    )
    with pytest.warns(ExperimentalWarning, match="block_overrides"):
        return plan_blocks(config.to_dict())


def test_order_is_expanded() -> None:
    order = [{"name": "a"}, {"order": [{"name": "b", "repeat": 2}, {"name": "a"}], "repeat": 2}]
    assert expand_order(order) == ["a", "b", "b", "a", "b", "b", "a"]
    with pytest.raises(ValueError, match="a name or an order"):
        expand_order([{"repeat": 2}])


def test_reuse_is_followed_to_its_root() -> None:
    reuse = {"r": {"attn_config": {"reuse_kv_layer_idx": -1}}}
    plan = _plan([{"name": "default"}, {"name": "r", "repeat": 3}], reuse)
    found = [args["attn_config"].get("reuse_kv_layer_idx") for args in plan.block_args]
    assert found == [None, 0, 0, 0]
    assert plan.state_cache_layers == {"reuse_kv_layer_idx": {0}}


def test_overrides_leave_other_blocks_and_siblings_alone() -> None:
    wide = {"w": {"attn_config": {"attn_temperature_tuning": {"attn_scale": 0.5}}}}
    plan = _plan([{"name": "default", "repeat": 3}, {"name": "w"}], wide)
    tuned = [args["attn_config"]["attn_temperature_tuning"] for args in plan.block_args]
    assert tuned[3] == {"floor_scale": 8192, "attn_scale": 0.5}
    assert tuned[0] == {"floor_scale": 8192, "attn_scale": 0.0}


def test_contradictions_are_refused() -> None:
    both = {"b": {"attn_config": {"reuse_kv_layer_idx": -1, "reuse_kv_x_layer_idx": -1}}}
    with pytest.raises(ValueError, match="not both"):
        _plan([{"name": "default"}, {"name": "b", "repeat": 3}], both)
    with pytest.raises(ValueError, match="names 'x'"):
        _plan([{"name": "x", "repeat": 4}], {})
