"""Ranks and collectives, unlaunched and on two gloo ranks."""

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

from composer.utils import dist
from tests.launch import run_ranks

VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


@pytest.fixture
def unlaunched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what the test sets is undone
        monkeypatch.delenv(name)
    return monkeypatch


def test_unlaunched_world_has_one_rank(unlaunched: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not dist.is_initialized() and dist.is_available()
    assert (dist.get_world_size(), dist.get_local_world_size()) == (1, 1)
    assert (dist.get_global_rank(), dist.get_local_rank(), dist.get_node_rank()) == (0, 0, 0)
    tensor = torch.tensor([3.0])
    dist.barrier()
    dist.all_reduce(tensor)
    dist.broadcast(tensor, src=0)
    assert dist.all_gather(tensor) == [tensor] and tensor.item() == 3
    assert dist.all_gather_object("x") == ["x"]
    objects = ["x"]
    dist.broadcast_object_list(objects)
    assert objects == ["x"]
    assert dist.from_rank_zero(lambda: 4) == 4
    with dist.run_local_rank_zero_first(), dist.busy_wait_for_local_rank_zero(str(tmp_path)):
        (tmp_path / "x").touch()
    with dist.local_rank_zero_download_and_wait(tmp_path / "x"):
        pass
    assert os.listdir(tmp_path) == ["x"]


def test_launched_but_not_initialized(unlaunched: pytest.MonkeyPatch) -> None:
    unlaunched.setenv("WORLD_SIZE", "2")
    unlaunched.setenv("RANK", "1")
    assert (dist.get_world_size(), dist.get_global_rank()) == (2, 1)
    for call in (
        dist.barrier,
        lambda: dist.all_reduce(torch.ones(1)),
        dist.get_node_signal_file_name,
    ):
        with pytest.raises(RuntimeError, match="initialize_dist"):
            call()
    with pytest.raises(dist.MissingEnvironmentError, match="LOCAL_RANK, MASTER_ADDR, MASTER_PORT"):
        dist.initialize_dist("cpu")


def test_places_of_other_launchers(unlaunched: pytest.MonkeyPatch) -> None:
    unlaunched.setenv("GROUP_RANK", "3")
    assert dist.get_node_rank() == 3
    unlaunched.setenv("NODE_RANK", "2")
    assert dist.get_node_rank() == 2
    unlaunched.setenv("NODE_RANK", "two")
    with pytest.raises(ValueError, match="NODE_RANK='two' must be an integer"):
        dist.get_node_rank()


def test_unknown_reduction_is_named() -> None:
    with pytest.raises(ValueError, match="'MEAN' is not .*SUM"):
        dist.all_reduce(torch.ones(1), "MEAN")


def test_initialize_alone(unlaunched: pytest.MonkeyPatch) -> None:
    dist.initialize_dist("cpu", timeout=20)
    try:
        assert dist.is_initialized() and dist.get_world_size() == 1
        assert os.environ["LOCAL_RANK"] == os.environ["NODE_RANK"] == "0"
        dist.initialize_dist("gloo")
        dist.barrier()
        with pytest.raises(RuntimeError, match="already initialized with the backends .*gloo"):
            dist.initialize_dist("gpu")
        unlaunched.setenv("WORLD_SIZE", "2")
        with pytest.raises(RuntimeError, match="WORLD_SIZE=2 disagrees"):
            dist.get_world_size()
    finally:
        torch_dist.destroy_process_group()


def test_sampler_shares_the_dataset() -> None:
    dataset = torch.utils.data.TensorDataset(torch.arange(5))
    assert list(dist.get_sampler(dataset)) == [0, 1, 2, 3, 4]
    assert list(dist.get_sampler(dataset, num_replicas=2, rank=1)) == [1, 3, 0]
    assert list(dist.get_sampler(dataset, num_replicas=2, rank=1, drop_last=True)) == [1, 3]
    shuffled = dist.get_sampler(dataset, shuffle=True, seed=3)
    assert sorted(shuffled) == [0, 1, 2, 3, 4]

    class Unsized(torch.utils.data.Dataset[int]):
        pass

    with pytest.raises(ValueError, match="Unsized has no length"):
        dist.get_sampler(Unsized())


def _collectives(rank: int) -> dict[str, Any]:
    total, largest, shared = (torch.tensor([rank + 1.0]) for _ in range(3))
    dist.all_reduce(total)
    dist.all_reduce(largest, "max")
    dist.broadcast(shared, src=1)
    objects = [f"of {rank}", rank]
    dist.broadcast_object_list(objects, src=1)
    return {
        "reduced": [total.item(), largest.item(), shared.item()],
        "gathered": [part.item() for part in dist.all_gather(torch.tensor([rank * 10]))],
        "objects": (objects, dist.all_gather_object({"rank": rank})),
        "name": dist.get_node_signal_file_name(random.Random(0)),
    }


def _rank_zero_work(rank: int) -> list[Any]:
    def fail() -> None:
        raise FileNotFoundError("no such folder")

    answers: list[Any] = [dist.from_rank_zero(lambda: f"from {rank}")]
    try:
        dist.from_rank_zero(fail)
    except Exception as error:
        answers.append((type(error).__name__, str(error)))
    return answers


def _waiting(rank: int, folder: Path) -> dict[str, Any]:
    order = folder / "order"
    with dist.run_local_rank_zero_first():
        if rank == 0:
            time.sleep(0.2)
            order.write_text("0")
        else:
            order.write_text(order.read_text() + "1")
    with dist.busy_wait_for_local_rank_zero(str(folder)):
        if rank == 0:
            time.sleep(0.2)
            (folder / "slow").touch()
    with dist.local_rank_zero_download_and_wait(folder / "file"):
        if rank == 0:
            time.sleep(0.2)
            (folder / "file").touch()
        seen = (folder / "file").exists()
    name = dist.get_node_signal_file_name()
    dist.write_signal_file(name, str(folder / "signals"))
    dist.barrier()
    return {
        "order": order.read_text(),
        "slow": (folder / "slow").exists(),
        "file": seen,
        "signal": (folder / "signals" / name).exists(),
    }


def _failing_wait(rank: int, folder: Path) -> list[str]:
    said = []
    for wait in (
        dist.busy_wait_for_local_rank_zero(str(folder)),
        dist.run_local_rank_zero_first(),
        dist.local_rank_zero_download_and_wait(folder / "never"),
    ):
        try:
            with wait:
                if rank == 0:
                    raise ConnectionError("no network")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def _on_two_ranks(folder: str) -> dict[str, Any]:
    rank = dist.get_global_rank()
    return {
        **_collectives(rank),
        "zero": _rank_zero_work(rank),
        "waiting": _waiting(rank, Path(folder)),
        "failing": _failing_wait(rank, Path(folder)),
        "places": (dist.get_world_size(), dist.get_local_world_size(), dist.get_local_rank()),
        "share": list(dist.get_sampler(torch.utils.data.TensorDataset(torch.arange(4)))),
    }


def test_two_ranks(tmp_path: Path) -> None:
    first, second = run_ranks(_on_two_ranks, 2, str(tmp_path))
    for answer in (first, second):
        assert answer["reduced"] == [3.0, 2.0, 2.0]
        assert answer["gathered"] == [0, 10]
        assert answer["objects"] == (["of 1", 1], [{"rank": 0}, {"rank": 1}])
        assert answer["waiting"] == {"order": "01", "slow": True, "file": True, "signal": True}
    assert first["name"] == second["name"]
    assert first["name"].startswith("._signal_file_node0_")
    assert first["zero"] == ["from 0", ("FileNotFoundError", "no such folder")]
    assert second["zero"][0] == "from 0" and second["zero"][1][0] == "RuntimeError"
    assert "no such folder" in second["zero"][1][1]
    assert first["failing"] == ["ConnectionError: no network"] * 3
    failed = "RuntimeError: Local rank 0 of node 0 failed: ConnectionError: no network"
    told = "RuntimeError: Rank 0 failed, so rank 1 stops too: ConnectionError: no network"
    assert second["failing"] == [told, failed, failed]
    assert (first["places"], second["places"]) == ((2, 2, 0), (2, 2, 1))
    assert (first["share"], second["share"]) == ([0, 2], [1, 3])
