"""What does not combine is refused at start, by one table that the docs show."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Algorithm
from composer.algorithms import SAM
from composer.distributed.combinations import (
    NEEDED,
    REFUSED,
    Feature,
    check_combination,
    matrix,
)
from composer.trainer.trainer import Trainer
from composer.utils import dist
from tests.composer.distributed.sharded_models import classifier
from tests.launch import run_ranks

ROOT = Path(__file__).parents[3]


def test_every_pair_of_the_table_is_refused_with_its_reason() -> None:
    for one, other, reason in REFUSED:
        with pytest.raises(ValueError) as error:
            check_combination({one, other, Feature.RECOMPUTING})
        assert reason in str(error.value) and one.value in str(error.value)
        check_combination({one, Feature.RECOMPUTING})
    for one, other, reason in NEEDED:
        with pytest.raises(ValueError, match=re.escape(reason)):
            check_combination({one, Feature.RECOMPUTING})
        check_combination({one, other})


def test_the_docs_show_the_table() -> None:
    page = (ROOT / "docs" / "parallelism.md").read_text()
    _, _, section = page.partition("## What does not combine")
    table = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("|")]
    assert table[2:] == [f"| {' | '.join(row)} |" for row in matrix()]


class Unused(Algorithm):
    find_unused_parameters = True

    def match(self, event: Any, state: Any) -> bool:
        return False

    def apply(self, event: Any, state: Any, logger: Any) -> None:
        return None


class SecondOrder(Unused):
    find_unused_parameters = False
    backwards_create_graph = True


def _messages() -> dict[str, str]:
    sharded = {"fsdp2": {}}
    tries: dict[str, dict[str, Any]] = {
        "unused": {"parallelism_config": sharded, "algorithms": Unused()},
        "second order": {"parallelism_config": sharded, "algorithms": SecondOrder()},
        "two passes": {"parallelism_config": sharded, "algorithms": SAM()},
        "strategy": {"parallelism_config": sharded, "ddp_sync_strategy": "forced_sync"},
        "closure": {"parallelism_config": sharded, "optimizers": torch.optim.LBFGS},
        "meta": {"model": classifier("meta")},
        "no shards": {
            "model": classifier("meta"),
            "parallelism_config": {"fsdp": {"sharding_strategy": "NO_SHARD"}},
        },
        "degrees": {"parallelism_config": {"fsdp2": {"data_parallel_shard_degree": 3}}},
        "split": {"parallelism_config": {"cp": {"context_parallel_degree": 2}}},
    }
    tries["mixed"] = {
        "model": classifier("meta" if dist.get_global_rank() else "cpu"),
        "parallelism_config": {"fsdp2": {}, "tp": {"tensor_parallel_degree": 2}},
    }
    found = {}
    for name, settings in tries.items():
        model = settings.pop("model", None) or classifier()
        optimizer = settings.pop("optimizers", torch.optim.SGD)(model.parameters(), lr=0.1)
        try:
            Trainer(model=model, optimizers=optimizer, device="cpu", progress_bar=False, **settings)
            found[name] = "nothing is refused"
        except ValueError as error:
            found[name] = str(error)
    assert dist.get_world_size() == 2
    return found


def test_the_trainer_asks_the_table() -> None:
    expected = {
        "unused": "find_unused_parameters",
        "second order": "backwards_create_graph",
        "two passes": "runs the passes itself",
        "strategy": "ddp_sync_strategy",
        "closure": "runs the passes itself",
        "meta": "init_device: cpu",
        "no shards": "init_device: cpu",
        "degrees": "does not fit 2 ranks",
        "split": "split what is sharded",
        "mixed": "set init_device: meta",
    }
    for found in run_ranks(_messages, 2):
        for name, words in expected.items():
            assert words in found[name], (name, found[name])
