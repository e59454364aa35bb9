"""The recipes of 7B and more, built without memory on as many ranks as they are for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# One rank of many, in a process of its own: a group is a property of the process. The group is
# fake, so that nothing is sent.
PROGRAM = """
import sys
import torch.distributed
from omegaconf import OmegaConf
from torch.testing._internal.distributed.fake_pg import FakeStore

from composer.distributed.activation_checkpointing import (
    apply_ac, generate_composer_model_check_fn,
)
from composer.distributed.fully_shard import apply_fully_shard
from composer.distributed.plan import plan_parallelism
from composer.distributed.wrapping import generate_composer_model_policy
from composer.utils.parallelism import parse_parallelism_config
from llmfoundry.builders.models import build_composer_model

ranks, path = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
recipe = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
model = build_composer_model(recipe["model"].pop("name"), recipe["model"], None)
assert all(parameter.is_meta for parameter in model.parameters())
plan = plan_parallelism(parse_parallelism_config({"fsdp": recipe["fsdp_config"]}), "cpu")
apply_ac(
    model, plan.sharding.activation_checkpointing, False, generate_composer_model_check_fn(model)
)
apply_fully_shard(model, plan.sharding, None, generate_composer_model_policy(model))
own = sum(parameter.to_local().numel() for parameter in model.parameters())
total = sum(parameter.numel() for parameter in model.parameters())
print(total, own, *plan.mesh.mesh_dim_names, *plan.mesh.shape)
"""


@pytest.mark.parametrize(
    "recipe, ranks, total, sharers, mesh",
    [
        pytest.param(
            "mpt-7b",
            8,
            6_658_859_008,
            8,
            ["data_parallel_replicate", "data_parallel_shard", "1", "8"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "mpt-30b",
            64,
            29_975_214_080,
            32,
            ["data_parallel_replicate", "data_parallel_shard", "2", "32"],
            marks=pytest.mark.slow,
        ),
        (
            "mpt-70b",
            256,
            64_862_437_376,
            64,
            ["data_parallel_replicate", "data_parallel_shard", "4", "64"],
        ),
    ],
)
def test_a_rank_holds_its_share(
    recipe: str, ranks: int, total: int, sharers: int, mesh: list[str]
) -> None:
    environment = {
        "RANK": "0",
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "8",
        "NODE_RANK": "0",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error::UserWarning:composer",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(ranks), str(ROOT / "yamls" / f"{recipe}.yaml")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    whole, own, *shape = done.stdout.split()
    assert int(whole) == total
    assert shape == mesh
    # The first rank rounds up where a dimension does not divide: less than a row of each weight.
    assert total / sharers <= int(own) < total / sharers * 1.001
