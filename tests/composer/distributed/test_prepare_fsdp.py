"""Sharding by the names that programs know, and state dicts of sharded models."""

from typing import Any

import pytest
import torch

from composer.core.state import (
    fsdp_state_dict_type_context,
    get_fsdp_full_optim_state_dict,
    get_fsdp_sharded_optim_state_dict,
)
from composer.distributed import mosaic_parallelism, prepare_fsdp_module
from composer.utils import dist
from composer.utils.parallelism import FSDP2Config, FSDPConfig
from tests.composer.distributed.sharded_models import batch, classifier
from tests.launch import run_ranks


def _sharded() -> dict[str, Any]:
    model, whole = classifier(), classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    handles, modules = prepare_fsdp_module(model, optimizer, FSDPConfig())
    inputs = batch()
    model.loss(model(inputs), inputs).backward()
    optimizer.step()
    optimizer.zero_grad()
    with fsdp_state_dict_type_context(model, "full"):
        state = model.state_dict()
    with fsdp_state_dict_type_context(model, "sharded"):
        shards = model.state_dict()
    full = get_fsdp_full_optim_state_dict(model, optimizer, rank0_only=False)
    sharded = get_fsdp_sharded_optim_state_dict(full, model)
    name = "module.first.weight"
    moment = optimizer.state[dict(model.named_parameters())[name]]["exp_avg"]
    return {
        "handles": handles,
        "modules": sorted(modules),
        "whole": {key: tuple(value.shape) for key, value in state.items()},
        "names": list(whole.state_dict()),
        "shards": all(hasattr(value, "device_mesh") for value in shards.values()),
        "moments": torch.equal(sharded["state"][name]["exp_avg"].to_local(), moment.to_local()),
        "on rank 0": bool(get_fsdp_full_optim_state_dict(model, optimizer)),
        "rank": dist.get_global_rank(),
    }


def test_state_dicts_of_a_sharded_model() -> None:
    first, second = run_ranks(_sharded, 2)
    assert first["handles"] == [] and first["modules"] == [
        "module",
        "module.blocks.0",
        "module.blocks.1",
    ]
    assert list(first["whole"]) == first["names"] and second["whole"] == {}
    assert first["whole"]["module.first.weight"] == (16, 8)
    assert first["shards"] and second["shards"] and first["moments"] and second["moments"]
    assert first["on rank 0"] and not second["on rank 0"]


def test_what_is_refused() -> None:
    model = classifier()
    with pytest.raises(NotImplementedError, match="state_dict_type"):
        with fsdp_state_dict_type_context(model, "local"):
            pass
    with pytest.raises(NotImplementedError, match="as a number"):
        prepare_fsdp_module(model, None, FSDP2Config(), auto_microbatching=True)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    with pytest.raises(NotImplementedError, match="one optimizer"):
        prepare_fsdp_module(model, optimizers, FSDP2Config())
    with pytest.raises(ValueError, match="NO_SHARD"):
        prepare_fsdp_module(model, None, FSDPConfig(sharding_strategy="NO_SHARD"))
    with pytest.raises(NotImplementedError, match="create_mixed_precision_policy"):
        mosaic_parallelism.get_mixed_precision("amp_bf16")
