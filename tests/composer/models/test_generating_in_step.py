"""Ranks that share weights generate together, though one is done before the other."""

from typing import Any

import pytest
import torch

from composer.distributed.parallelize import parallelize_composer_model
from composer.utils import dist
from composer.utils.parallelism import FSDP2Config
from tests.launch import run_ranks
from tests.llmfoundry.side_by_side import llama, mpt

WAYS: dict[str, dict[str, Any]] = {
    "kept keys": {"use_cache": True},
    "no keys": {"use_cache": False},
    "beams": {"use_cache": True, "num_beams": 2},
}


def _generated(kind: str) -> dict[str, bool]:
    build = {"llama": llama, "mpt": mpt}[kind]
    sharded, whole = build().eval(), build().eval()
    parallelize_composer_model(sharded, None, FSDP2Config())
    rank = dist.get_global_rank()
    prompt = torch.arange(10 * rank, 10 * rank + 10).view(2, 5)
    mask = torch.ones_like(prompt)
    # The first rank is done after two tokens, the second after six.
    found = {}
    for name, way in WAYS.items():
        settings = {
            "attention_mask": mask,
            "max_new_tokens": (2, 6)[rank],
            "pad_token_id": 0,
            **way,
        }
        texts = [model.generate(prompt, **settings) for model in (sharded, whole)]
        found[name] = texts[0].shape[1] == 5 + (2, 6)[rank] and torch.equal(*texts)
    return found


@pytest.mark.parametrize("kind", ["llama", "mpt"])
def test_texts_of_unequal_length_are_those_of_one_process(kind: str) -> None:
    assert run_ranks(_generated, 2, kind) == [dict.fromkeys(WAYS, True)] * 2
