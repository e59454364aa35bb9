"""The first rank of each node before its others: slow nodes, failures, and what is shared."""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as torch_dist

from composer.utils import dist
from llmfoundry.data.finetuning.node_order import first_rank_first
from tests.launch import run_ranks

TIMEOUT = 1.0


def _on_two_nodes(folder: str) -> list[str]:
    rank = dist.get_global_rank()
    os.environ.update(NODE_RANK=str(rank), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    torch_dist.distributed_c10d._set_pg_timeout(timedelta(seconds=TIMEOUT))
    with first_rank_first() as share:
        assert share(lambda: f"{rank}") == f"{rank}"  # each node has its own
        if rank == 1:
            time.sleep(2.5 * TIMEOUT)
    dist.barrier()  # rank 0 has not come here long before
    said = []
    for failing in (0, 1):
        try:
            with first_rank_first():
                if rank == failing:
                    raise ConnectionError("no network")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def test_a_node_that_has_all_waits_longer_than_a_collective_does(tmp_path: Path) -> None:
    own = "ConnectionError: no network"
    told = "RuntimeError: Rank {} failed, so this one stops too: " + own
    assert run_ranks(_on_two_nodes, 2, str(tmp_path)) == [
        [own, told.format(1)],
        [told.format(0), own],
    ]


def _on_one_node(folder: str) -> list[Any]:
    rank = dist.get_global_rank()
    order, values = Path(folder, "order"), []
    for _ in range(2):
        with first_rank_first() as share:
            if rank == 0:
                time.sleep(0.3)
                order.write_text("0")
            order.write_text(order.read_text() + "1" * rank)
            values += [share(lambda: f"first {rank}"), share(lambda: f"{rank}")]
    dist.barrier()
    said = ""
    try:
        with first_rank_first():
            if rank == 1:
                raise ValueError("bad")
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    return [order.read_text(), values, said]


def test_others_of_a_node_come_later_and_take_what_the_first_made(tmp_path: Path) -> None:
    told = "RuntimeError: Rank 1 failed, so this one stops too: ValueError: bad"
    same = ["01", ["first 0", "0"] * 2]
    assert run_ranks(_on_one_node, 2, str(tmp_path)) == [[*same, told], [*same, "ValueError: bad"]]
