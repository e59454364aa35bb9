"""An MPT whose sequences ranks share gives the losses and gradients of one process."""

from typing import Any

import pytest
import torch

from composer.distributed.context_parallel import prepare_cp_module
from composer.utils.parallelism import CPConfig
from tests.launch import run_ranks
from tests.llmfoundry.side_by_side import (
    Split,
    Worst,
    all_worst,
    check,
    mpt,
    sgd,
    worst_differences,
)

ALIBI: dict[str, Any] = {"attn_config": {"alibi": True}}
DOCUMENTS: dict[str, Any] = {
    "attn_config": {
        "rope": True,
        "attn_uses_sequence_id": True,
        "attn_type": "grouped_query_attention",
        "kv_n_heads": 2,
        "attn_temperature_tuning": {"floor_scale": 2, "attn_scale": 0.5},
    },
    "tie_word_embeddings": False,
}
WINDOW: dict[str, Any] = {
    "attn_config": {"sliding_window_size": 5, "alibi": True},
    "use_pad_tok_in_ffn": False,
}
SOFTCAP: dict[str, Any] = {
    "attn_config": {"attn_logit_softcapping": 5.0, "attn_uses_sequence_id": True},
    "use_train_metrics": True,
}
VALUES: dict[str, Any] = {"attn_config": {"rope": True, "value_residual": 0.5}}
TABLES: dict[str, Any] = {"attn_config": {"rope": True, "value_embeddings": [0, 1]}}
REUSED: dict[str, Any] = {
    "attn_config": {"rope": True},
    "block_overrides": {
        "order": [{"name": "default"}, {"name": "again"}],
        "overrides": {"again": {"attn_config": {"reuse_kv_layer_idx": -1}}},
    },
}


def test_two_ranks_equal_one() -> None:
    shared = Split(context=2)
    check(
        run_ranks(
            all_worst,
            2,
            {
                "plain": (mpt, ALIBI, shared),
                "by norm": (mpt, ALIBI, shared._replace(clip=("norm", 0.05), microbatches=2)),
                "by value": (mpt, ALIBI, shared._replace(clip=("value", 0.003), microbatches=4)),
                "documents": (
                    mpt,
                    DOCUMENTS,
                    shared._replace(recomputes=True, inputs=("sequence_id",)),
                    sgd,
                ),
            },
        )[0]
    )


def _every_mask_and_length() -> tuple[dict[str, Worst], bool, str]:
    few = Split(context=2, steps=4)
    found = all_worst(
        {
            "pieces of one": (mpt, DOCUMENTS, few._replace(length=4, inputs=("sequence_id",)), sgd),
            "uneven": (mpt, WINDOW, few._replace(length=13, inputs=("attention_mask",))),
            "softcap": (mpt, SOFTCAP, few._replace(length=14, inputs=("sequence_id",))),
            "reused": (mpt, REUSED, few),
            "values of the first": (mpt, VALUES, few._replace(length=14, recomputes=True)),
            "value embeddings": (mpt, TABLES, few._replace(length=14, recomputes=True)),
        }
    )
    model, whole = mpt(**ALIBI).eval(), mpt(**ALIBI).eval()
    prepare_cp_module(model, CPConfig(2))
    prompt = torch.arange(10).view(2, 5)
    same = all(
        torch.equal(
            *(
                m.generate(
                    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=3, use_cache=c
                )
                for m in (model, whole)
            )
        )
        for c in (True, False)
    )
    try:
        model.model(prompt, output_attentions=True)
    except NotImplementedError as error:
        return found, same, str(error)
    return found, same, ""


@pytest.mark.filterwarnings("ignore:block_overrides")
def test_every_mask_and_length_can_be_split() -> None:
    found, same_texts, refusal = run_ranks(_every_mask_and_length, 2)[0]
    check(found)
    assert same_texts
    assert "not available with context parallelism" in refusal


def _four_ranks() -> dict[str, Worst]:
    some = Split(context=2, clip=("norm", 0.05), steps=5)
    documents = some._replace(context=4, inputs=("sequence_id",))
    return {
        "two sequences": worst_differences(mpt, ALIBI, some),
        "one sequence": worst_differences(mpt, DOCUMENTS, documents, sgd),
    }


@pytest.mark.slow
def test_four_ranks_that_share_sequences_and_batches_equal_one() -> None:
    check(run_ranks(_four_ranks, 4)[0])
