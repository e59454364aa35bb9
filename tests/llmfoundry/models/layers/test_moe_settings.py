"""Settings of mixtures of experts: defaults, and refusals that name the key and the cure."""

from typing import Any

import pytest

from llmfoundry.config.init_device import process_init_device
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.models.utils import config_moe_args
from llmfoundry.models.utils.config_moe_args import config_megablocks_moe_args
from tests.launch import run_ranks

MEGABLOCKS: dict[str, Any] = {"ffn_type": "mb_dmoe", "moe_num_experts": 4, "moe_world_size": 1}
TORCH: dict[str, Any] = {
    "ffn_type": "torch_dmoe",
    "moe_num_experts": 4,
    "moe_top_k": 2,
    "mlp_type": "glu",
    "moe_jitter_eps": 0.0,
    "moe_normalize_expert_weights": 1,
    "uniform_expert_assignment": False,
}


def _settings_of_two_ranks() -> Any:
    shared = {"moe_num_experts": 4, "moe_world_size": 2, "device_mesh": [2]}
    mesh = config_megablocks_moe_args(shared, 8, 2, 3)["device_mesh"]
    with pytest.raises(ValueError, match="over all 2 ranks. Leave device_mesh out"):
        config_megablocks_moe_args({**shared, "device_mesh": [1]}, 8, 2, 3)
    return mesh.mesh_dim_names, mesh.shape


def test_by_megablocks_names() -> None:
    assert config_megablocks_moe_args(MEGABLOCKS, 8, 2, 3) == config_moe_args(MEGABLOCKS, 8, 2, 3)
    with pytest.raises(ValueError, match="lbl_process_group='no_group' is not one of"):
        config_megablocks_moe_args(
            {**MEGABLOCKS, "lbl_process_group": "no_group"},
            d_model=8,
            expansion_ratio=2,
            n_layers=3,
            get_device_mesh=lambda **_: pytest.fail("no ranks share experts"),
        )
    for names, shape in run_ranks(_settings_of_two_ranks, 2):
        assert (names, shape) == (("weight_parallel", "expert_parallel"), (1, 2))


def test_defaults_are_megablocks() -> None:
    args = config_moe_args(MEGABLOCKS, d_model=8, expansion_ratio=2, n_layers=3)
    assert (args["hidden_size"], args["ffn_hidden_size"], args["num_layers"]) == (8, 16, 3)
    assert (args["moe_top_k"], args["moe_loss_weight"], args["mlp_type"]) == (1, 0.1, "mlp")
    # What upstream's recipe for a test of megablocks says.
    config_moe_args(
        {
            **MEGABLOCKS,
            "moe_top_k": 2,
            "mlp_impl": "grouped",
            "memory_optimized_mlp": True,
            "moe_lbl_in_fp32": False,
            "moe_loss_weight": 0.01,
            "uniform_expert_assignment": False,
            "fp16": False,
            "bf16": False,
            "return_bias": False,
            "device_mesh": [8],
        },
        8,
        1,
        2,
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"moe_num_expert": 4}, "'moe_num_expert' \\(did you mean 'moe_num_experts'"),
        ({"moe_world_size": None}, "needs ffn_config.moe_world_size"),
        ({"moe_world_size": 3}, "must be a multiple of moe_world_size=3"),
        ({"moe_world_size": 2, "device_mesh": [2, 2]}, "data_parallel_replicate_degree"),
        ({"moe_top_k": 5}, "at most moe_num_experts=4"),
        ({"mlp_type": "gated"}, "not one of mlp and glu"),
        ({"mlp_impl": "dense"}, "not one of sparse and grouped"),
        ({"moe_jitter_eps": 1.0}, "less than 1"),
        ({"moe_normalize_expert_weights": -1}, "order of a norm"),
        ({"moe_loss_weight": -0.1}, "must not be negative"),
        ({"lbl_process_group": "all"}, "not one of expert_group, global_group"),
        ({"lbl_process_group": True}, "not one of expert_group, global_group"),
        ({"lbl_process_group": "expert_group"}, "no effect with moe_world_size: 1"),
        ({"lbl_process_group": 2, "moe_loss_weight": 0}, "no effect: moe_loss_weight is 0"),
        ({"moe_capacity_factor": 2}, "no effect: mb_dmoe drops no token"),
        ({"ffn_type": "mb_moe", "mlp_type": "glu"}, "no effect: mb_moe has no gate"),
        ({"moe_zloss_in_fp32": True}, "no effect: moe_zloss_weight is 0"),
        ({"shared_expert_hidden_size": 4}, "no effect: shared_expert is false"),
        ({"bf16": True}, "no effect in mb_dmoe: the run's precision"),
        ({"hidden_size": 8}, "no effect in mb_dmoe: it is d_model"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        MPTConfig(
            d_model=8, n_heads=2, attn_config={"alibi": True}, ffn_config={**MEGABLOCKS, **change}
        )


def test_torch_dmoe_needs_all_its_keys_and_has_no_others() -> None:
    args = config_moe_args(TORCH, 8, 2, 1)
    assert args["moe_top_k"] == 2
    for key in TORCH.keys() - {"ffn_type"}:
        with pytest.raises(KeyError, match=key):
            config_moe_args({k: v for k, v in TORCH.items() if k != key}, 8, 2, 1)
    with pytest.raises(ValueError, match="Invalid arguments to torch dmoe: 'moe_loss_weight'"):
        config_moe_args({**TORCH, "moe_loss_weight": 0.1}, 8, 2, 1)


def test_no_tensor_parallelism() -> None:
    tp = {"strategy": "ffn", "tensor_parallel_degree": 2}
    with pytest.raises(ValueError, match="Tensor Parallelism is not currently supported for MoE"):
        process_init_device({"ffn_config": MEGABLOCKS}, {}, tp)
