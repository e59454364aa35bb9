"""Sequences are cut and put together, and Hugging Face models computed by shares, exactly."""

from typing import Any

import pytest
import torch
from torch import nn

from composer.distributed.context_parallel import SequenceShare, prepare_cp_module
from composer.distributed.mesh import CONTEXT, build_mesh
from composer.utils.parallelism import CPConfig
from tests.launch import run_ranks
from tests.llmfoundry.side_by_side import Split, Worst, all_worst, check, llama, sgd


def _cut_and_joined() -> list[tuple[list[int], bool, list[int]]]:
    share = SequenceShare(build_mesh("cpu", {CONTEXT: 2})[CONTEXT])
    found = []
    for length in (8, 5):
        whole = torch.arange(1, length + 1)[None]
        own = share.keep(whole, fill=-1).double().requires_grad_()
        joined = share.gather(own)
        is_whole = bool((joined[:, :length] == whole).all() and (joined[:, length:] == -1).all())
        (joined * (share.rank + 1)).sum().backward()
        assert own.grad is not None
        found.append((own[0].int().tolist(), is_whole, own.grad[0].int().tolist()))
    return found


def test_shares_are_a_front_and_a_back_piece() -> None:
    first, second = run_ranks(_cut_and_joined, 2)
    assert first == [([1, 2, 7, 8], True, [3] * 4), ([1, 2, -1, -1], True, [3] * 4)]
    assert second == [([3, 4, 5, 6], True, [3] * 4), ([3, 4, 5, -1], True, [3] * 4)]


def _hugging_face_models() -> tuple[dict[str, Worst], bool]:
    few = Split(context=2, steps=5, clip=("norm", 0.05))
    window = {"kind": "Mistral", "sliding_window": 5}
    found = all_worst(
        {
            "plain": (llama, {}, Split(context=2), sgd),
            "padded": (llama, {}, few._replace(length=14, inputs=("attention_mask",)), sgd),
            "documents": (llama, {}, few._replace(length=13, inputs=("position_ids",)), sgd),
            "window": (llama, window, few._replace(microbatches=2), sgd),
            "norms": (llama, {"kind": "Qwen3"}, few._replace(length=4), sgd),
        }
    )
    model, whole = llama().eval(), llama().eval()
    prepare_cp_module(model, CPConfig(2))
    prompt = torch.arange(10).view(2, 5)
    options: dict[str, Any] = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 3}
    same = all(
        torch.equal(*(m.generate(prompt, **options, use_cache=c) for m in (model, whole)))
        for c in (True, False)
    )
    return found, same


def test_hugging_face_models_on_two_ranks_equal_one() -> None:
    found, same_texts = run_ranks(_hugging_face_models, 2)[0]
    check(found)
    assert same_texts


class _OneRank:
    """A mesh of one."""

    def get_local_rank(self) -> int:
        return 0

    def size(self) -> int:
        return 1


def test_models_that_cannot_be_split_are_refused() -> None:
    config = CPConfig(1, _OneRank())
    with pytest.raises(ValueError, match="cannot split a Linear"):
        prepare_cp_module(nn.Linear(2, 2), config)
    with pytest.raises(ValueError, match="has 'eager'"):
        prepare_cp_module(llama(attn_implementation="eager"), config)
