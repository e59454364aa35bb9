"""A run that goes on with 1, 2, 4 and 1 processes has an unbroken run's samples and losses."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from composer.utils import dist
from tests.composer.checkpoint.sharded_runs import train
from tests.launch import run_ranks

SHARDED = {"state_dict_type": "sharded"}
HYBRID = {"state_dict_type": "sharded", "data_parallel_replicate_degree": 2}
pytestmark = [
    pytest.mark.filterwarnings("ignore:The checkpoint has the random states of"),
    pytest.mark.filterwarnings("ignore:Experimental FSDP2"),
]


def _go_on(folder: str, end: str, sharding: dict[str, Any] | None) -> tuple[Any, list[float]]:
    _, diary = train(end, sharding, save_folder=folder, autoresume=True)
    steps = zip(*dist.all_gather_object(diary.samples), strict=True)
    return [sorted(sum(parts, [])) for parts in steps], diary.losses


@pytest.mark.slow
def test_b41_1_2_4_1(tmp_path: Path) -> None:
    samples, losses = _go_on(str(tmp_path / "whole"), "8ba", None)
    folder, got_samples, got_losses = str(tmp_path / "parts"), [], []
    plan = [(1, "2ba", SHARDED), (2, "4ba", SHARDED), (4, "6ba", HYBRID), (1, "8ba", None)]
    for ranks, end, sharding in plan:
        args = (folder, end, sharding)
        told = [_go_on(*args)] if ranks == 1 else run_ranks(_go_on, ranks, *args)
        assert all(one == told[0] for one in told)
        got_samples += told[0][0]
        got_losses += told[0][1]
    assert got_samples == [sorted(batch) for batch in samples]
    assert got_losses == pytest.approx(losses, abs=1e-5)


def _in_tensor_parallel(folder: str) -> list[float]:
    split = {"module.first": ColwiseParallel(), "module.second": RowwiseParallel()}
    config = {
        "fsdp2": {**SHARDED, "data_parallel_shard_degree": 2},
        "tp": {"tensor_parallel_degree": 2, "layer_plan": split},
    }
    losses: list[float] = []
    for end in ("2ba", "4ba"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            how: dict[str, Any] = {"save_folder": folder, "autoresume": True}
            losses += train(end, None, copies=2, parallelism_config=config, **how)[1].losses
    return losses


@pytest.mark.slow
def test_layers_that_were_split_go_on_whole(tmp_path: Path) -> None:
    _, losses = _go_on(str(tmp_path / "whole"), "8ba", None)
    folder = str(tmp_path / "parts")
    split = run_ranks(_in_tensor_parallel, 4, folder)
    assert all(one == split[0] for one in split)
    _, rest = _go_on(folder, "8ba", None)
    assert split[0] + rest == pytest.approx(losses, abs=1e-5)
