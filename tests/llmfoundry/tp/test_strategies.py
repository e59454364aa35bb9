"""Layers that ranks share give the losses and gradients of one process."""

import types
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel

from composer.distributed.mesh import SHARD, TENSOR, build_mesh, data_axes
from composer.distributed.parallelize import parallelize_composer_model
from composer.distributed.tensor_parallel import prepare_tp_module
from composer.utils.parallelism import FSDP2Config, TPConfig
from llmfoundry.builders import build_tp_strategies
from llmfoundry.tp import ffn_tp_strategy, llama_tp_strategy, mpt_tp_strategy
from llmfoundry.tp.heads import WholeHeads
from llmfoundry.utils.warnings import ExperimentalWarning
from tests.launch import run_ranks
from tests.llmfoundry.side_by_side import Split, all_worst, check, llama, mpt, sgd

ALIBI: dict[str, Any] = {"attn_config": {"alibi": True}}
GROUPED: dict[str, Any] = {
    "attn_config": {
        "rope": True,
        "attn_type": "grouped_query_attention",
        "kv_n_heads": 2,
        "attn_uses_sequence_id": True,
    },
    "ffn_config": {"ffn_type": "mptglu"},
    "tie_word_embeddings": False,
    "fuse_norm_attn_norm": True,
}
SEPARATE: dict[str, Any] = {"attn_config": {"fused_qkv": False, "qk_gn": True, "clip_qkv": 1.0}}
TABLES: dict[str, Any] = {
    **GROUPED,
    "attn_config": {**GROUPED["attn_config"], "value_embeddings": [0, 1]},
}


def test_two_ranks_equal_one() -> None:
    check(
        run_ranks(
            all_worst,
            2,
            {
                "plain": (mpt, ALIBI, Split(2)),
                "by norm": (mpt, ALIBI, Split(2, clip=("norm", 0.05), microbatches=2)),
                "by value": (mpt, ALIBI, Split(2, clip=("value", 0.003), microbatches=4)),
                "llama": (llama, {}, Split(2, strategy="llama"), sgd),
            },
        )[0]
    )


def test_layers_of_every_kind_can_be_split() -> None:
    few = Split(2, clip=("value", 0.003), steps=4)
    hugging_face = few._replace(strategy="llama")
    recomputed = few._replace(recomputes=True, inputs=("sequence_id",))
    check(
        run_ranks(
            all_worst,
            2,
            {
                "grouped": (mpt, GROUPED, recomputed, sgd),
                "separate": (mpt, SEPARATE, few),
                "value embeddings": (mpt, TABLES, recomputed, sgd),
                "ffn alone": (mpt, ALIBI, few._replace(strategy="ffn", microbatches=2)),
                "llama, tied": (llama, {"tie_word_embeddings": True}, hugging_face, sgd),
                "qwen": (llama, {"kind": "Qwen3"}, hugging_face, sgd),
            },
        )[0]
    )


@pytest.mark.slow
def test_four_ranks_that_share_layers_and_batches_equal_one() -> None:
    some = Split(2, clip=("norm", 0.05), steps=5)
    check(
        run_ranks(
            all_worst,
            4,
            {
                "mpt": (mpt, ALIBI, some),
                "ffn alone": (mpt, ALIBI, some._replace(strategy="ffn")),
                "llama": (llama, {}, some._replace(strategy="llama"), sgd),
                "and sequences": (mpt, ALIBI, some._replace(context=2)),
            },
        )[0]
    )


def _whole_weights(init_device: str) -> bool:
    """Splits and shards a model; tells whether its weights are those of the whole one."""
    mesh = build_mesh("cpu", {SHARD: -1, TENSOR: 2})
    model, whole = mpt(**TABLES, init_device=init_device), mpt(**TABLES)
    torch.manual_seed(7)
    if init_device == "meta":
        whole.apply(whole.model.param_init_fn)
        torch.manual_seed(7)
    prepare_tp_module(model, None, TPConfig(mesh[TENSOR], 2, mpt_tp_strategy(model)))
    parallelize_composer_model(model, None, FSDP2Config(device_mesh=data_axes(mesh)))
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    return all(torch.equal(ours.full_tensor(), theirs) for ours, theirs in pairs)  # type: ignore[attr-defined]


def _weights_of_both_kinds() -> list[bool]:
    return [_whole_weights("cpu"), _whole_weights("meta")]


def test_weights_are_kept_in_their_own_order() -> None:
    assert run_ranks(_weights_of_both_kinds, 2) == [[True, True]] * 2


def test_the_plan_for_feed_forward_layers_alone() -> None:
    plan = ffn_tp_strategy(mpt())
    prefix = "model.transformer.blocks.1.ffn"
    kinds = {name: type(style) for name, style in plan.items() if name.startswith(prefix)}
    assert kinds == {
        prefix: PrepareModuleInput,
        f"{prefix}.up_proj": ColwiseParallel,
        f"{prefix}.down_proj": RowwiseParallel,
    }
    assert len(plan) == 6


def test_recipes_name_strategies() -> None:
    with pytest.warns(ExperimentalWarning, match="Tensor Parallelism"):
        plan = build_tp_strategies("mpt", mpt())
    assert len(plan) == 2 * 5


def test_heads_that_cannot_be_dealt_out_are_refused() -> None:
    mesh = types.SimpleNamespace(size=lambda: 4)
    with pytest.raises(ValueError, match="must be a divisor of 2"):
        WholeHeads(4, 2)._apply(nn.Identity(), mesh)


def test_models_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(ValueError, match="qk_gn: true"):
        mpt_tp_strategy(mpt(attn_config={"qk_ln": True}))
    with pytest.raises(ValueError, match="use the strategy 'llama'"):
        mpt_tp_strategy(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="use the strategy 'mpt'"):
        llama_tp_strategy(mpt())
    with pytest.raises(RuntimeError, match="needs modules ffn, ffn.up_proj, ffn.down_proj"):
        ffn_tp_strategy(llama())
    with pytest.raises(ValueError, match="norm over all heads together"):
        llama_tp_strategy(llama("Olmo2"))
    with pytest.raises(ValueError, match="each a plain linear layer"):
        llama_tp_strategy(llama("Mixtral", num_local_experts=2))
