"""Settings of parallel training, and the translation of older ones."""

import dataclasses
import warnings

import pytest
import torch

from composer import Trainer
from composer.models import ComposerClassifier
from composer.utils.parallelism import (
    FSDP2Config,
    FSDPConfig,
    ParallelismConfig,
    TPConfig,
    parse_parallelism_config,
)


def test_defaults():
    old = FSDPConfig()
    assert (old.sharding_strategy, old.state_dict_type, old.mixed_precision) == (
        "FULL_SHARD",
        "full",
        "DEFAULT",
    )
    assert old.device_mesh is None
    new = FSDP2Config()
    assert new.reshard_after_forward is True and new.state_dict_type == "sharded"
    assert (new.load_planner, new.save_planner, new.use_orig_params) == (None, None, True)
    assert TPConfig().tensor_parallel_degree == 1


@pytest.mark.parametrize(
    "strategy, reshard",
    [
        ("FULL_SHARD", True),
        ("HYBRID_SHARD", True),
        ("SHARD_GRAD_OP", False),
        ("_HYBRID_SHARD_ZERO2", False),
    ],
)
def test_strategies(strategy, reshard):
    new = FSDPConfig(
        sharding_strategy=strategy, activation_checkpointing=True, data_parallel_shard_degree=2
    ).to_fsdp2()
    assert new.reshard_after_forward is reshard
    assert new.activation_checkpointing and new.data_parallel_shard_degree == 2
    assert new.state_dict_type == "full"


def test_no_shard_is_not_sharded():
    assert FSDPConfig(sharding_strategy="NO_SHARD").to_fsdp2() is None
    with pytest.raises(ValueError, match="leave fsdp_config out"):
        FSDP2Config.from_compatible_attrs({"sharding_strategy": "NO_SHARD"})


def test_what_tuned_the_old_engine_is_warned_about():
    with pytest.warns(UserWarning, match="backward_prefetch, limit_all_gathers"):
        FSDPConfig(backward_prefetch="BACKWARD_PRE", limit_all_gathers=False).to_fsdp2()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FSDPConfig(backward_prefetch="BACKWARD_POST", limit_all_gathers=True).to_fsdp2()


def test_what_would_change_results_is_refused():
    with pytest.raises(ValueError, match="keep_low_precision_grads"):
        FSDPConfig(keep_low_precision_grads=True).to_fsdp2()


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"sharding_stratgy": "FULL_SHARD"}, "did you mean 'sharding_strategy'"),
        ({"device_mesh": 1}, "Directly specifying device mesh for FSDP was deprecated"),
        ({"sharding_strategy": "HALF"}, "'HALF'"),
        ({"state_dict_type": "local"}, "'local'"),
        ({"cpu_offload": True}, "cpu_offload"),
        (
            {"activation_cpu_offload": True, "use_orig_params": False},
            "activation_cpu_offload=True is not supported with use_orig_params=False.",
        ),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        FSDPConfig(**settings)


def test_from_compatible_attrs():
    new = FSDP2Config.from_compatible_attrs(
        {"sharding_strategy": "SHARD_GRAD_OP", "activation_checkpointing": True}
    )
    assert new == FSDP2Config(reshard_after_forward=False, activation_checkpointing=True)
    assert FSDP2Config.from_compatible_attrs({"verbose": True}).verbose
    with pytest.warns(UserWarning, match="did you mean 'reshard_after_forward'"):
        new = FSDP2Config.from_compatible_attrs({"reshard_after_foward": False})
    assert new == FSDP2Config()
    assert "reshard_after_forward" in FSDP2Config.settable_attrs()
    assert "load_planner" not in FSDP2Config.settable_attrs()


def test_parsing():
    assert parse_parallelism_config(None) is None
    assert parse_parallelism_config({}) is None
    assert parse_parallelism_config(ParallelismConfig()) is None
    parsed = parse_parallelism_config({"fsdp": {"verbose": True}, "tp": {"layer_plan": {}}})
    assert parsed.fsdp.verbose and parsed.tp.layer_plan == {} and parsed.fsdp2 is None
    given = FSDP2Config()
    assert parse_parallelism_config({"fsdp": given}).fsdp2 is given
    assert parse_parallelism_config({"fsdp2": {"verbose": True}}).fsdp2.verbose
    assert parse_parallelism_config({"fsdp2": given}).fsdp2 is given
    with pytest.raises(ValueError, match="'fdsp'"):
        parse_parallelism_config({"fdsp": {}})
    with pytest.raises(ValueError, match="did you mean 'verbose'"):
        parse_parallelism_config({"fsdp2": {"verbos": True}})
    with pytest.raises(ValueError, match="leave one out"):
        parse_parallelism_config({"fsdp": {}, "fsdp2": {}})
    assert parse_parallelism_config({"cp": {"context_parallel_degree": 2}}).cp is not None


def test_which_settings_a_dictionary_has(monkeypatch):
    parsed = parse_parallelism_config({"fsdp": {"num_units_to_prefetch": 2, "verbose": True}})
    assert parsed.fsdp is None and parsed.fsdp2.num_units_to_prefetch == 2
    monkeypatch.setenv("FSDP_VERSION", "2")
    parsed = parse_parallelism_config({"fsdp": {"sharding_strategy": "SHARD_GRAD_OP"}})
    assert parsed.fsdp is None and parsed.fsdp2.reshard_after_forward is False


def test_hybrid_sharding_of_old_recipes_is_by_node(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    new = FSDPConfig(sharding_strategy="HYBRID_SHARD").to_fsdp2()
    assert (new.data_parallel_replicate_degree, new.data_parallel_shard_degree) == (-1, 8)


# Every key of the old engine's settings, and what a value other than the default comes to.
TRANSLATED = {
    "activation_checkpointing": True,
    "activation_cpu_offload": True,
    "data_parallel_replicate_degree": 2,
    "data_parallel_shard_degree": 2,
    "load_monolith_rank0_only": True,
    "mixed_precision": "PURE",
    "sharded_ckpt_prefix_dir": "ba{batch}",
    "sharding_strategy": "SHARD_GRAD_OP",
    "state_dict_type": "sharded",
    "sync_module_states": True,
    "verbose": True,
}
IDLE = {
    "activation_checkpointing_reentrant": False,
    "auto_wrap": False,
    "backward_prefetch": "BACKWARD_PRE",
    "backward_prefetch_limit": 2,
    "forward_prefetch": True,
    "forward_prefetch_limit": 2,
    "limit_all_gathers": False,
    "te_checkpoint_wrapper": True,
    "te_shard_fp8_weight": True,
    "use_orig_params": False,
}
RAISING = {
    "cpu_offload": True,
    "device_mesh": object(),
    "ignored_modules": [object()],
    "keep_low_precision_grads": True,
    "load_planner": object(),
    "process_group": "node",
    "save_planner": object(),
}


def test_no_key_of_the_old_engine_is_forgotten():
    known = {one.name for one in dataclasses.fields(FSDPConfig)} | {"device_mesh"}
    assert {*TRANSLATED, *IDLE, *RAISING} == known


@pytest.mark.parametrize("key", TRANSLATED)
def test_keys_that_mean_something(key):
    plain = FSDPConfig().to_fsdp2()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new = FSDPConfig(**{key: TRANSLATED[key]}).to_fsdp2()
    assert new != plain
    if key != "sharding_strategy":
        assert getattr(new, key) == TRANSLATED[key]


@pytest.mark.parametrize("key", IDLE)
def test_keys_that_tuned_the_old_engine(key):
    with pytest.warns(UserWarning, match=f"fsdp_config sets {key}, which only tuned") as said:
        new = FSDPConfig(**{key: IDLE[key]}).to_fsdp2()
    assert len(said) == 1 and new == FSDPConfig().to_fsdp2()


def test_buffers_are_not_cast():
    settings = {"param_dtype": "bf16", "reduce_dtype": "fp32", "buffer_dtype": "bf16"}
    with pytest.warns(UserWarning, match="fsdp_config sets mixed_precision.buffer_dtype"):
        FSDPConfig(mixed_precision=settings).to_fsdp2()


@pytest.mark.parametrize("key", RAISING)
def test_keys_that_would_change_results(key):
    with pytest.raises(ValueError, match=key.replace("_", "[_ ]")):
        FSDPConfig(**{key: RAISING[key]}).to_fsdp2()


def test_a_run_warns_once():
    model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    with pytest.warns(UserWarning, match="fsdp_config sets") as said:
        Trainer(
            model=model,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            parallelism_config={"fsdp": {**IDLE, "use_orig_params": True}},
            device="cpu",
            progress_bar=False,
        )
    text = [str(each.message) for each in said if "fsdp_config" in str(each.message)]
    assert len(text) == 1
    assert all(key in text[0] for key in IDLE if key != "use_orig_params")
