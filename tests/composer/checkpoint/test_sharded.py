"""Sharded models: their parts saved and loaded, as shards and whole."""

import os
import warnings
from pathlib import Path

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from composer.checkpoint.load import (
    download_and_load_sharded_state_dict,
    load_model_checkpoint,
    load_optim_checkpoint,
)
from composer.checkpoint.save import (
    is_state_dict_sharded,
    save_model_to_disk,
    save_optim_to_disk,
    save_state_dict_to_disk,
)
from composer.checkpoint.sharded import FileSystemReaderWithValidation
from composer.checkpoint.state_dict import get_model_state_dict
from composer.utils import dist
from tests.launch import run_ranks


def _trained(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def _round_trip(folder: str, sharded: bool) -> None:
    model, optimizer = _trained(0)
    paths = [
        save_model_to_disk(model, folder, sharded),
        save_optim_to_disk(model, optimizer, folder, sharded),
    ]
    names = ["model", "optim"] if sharded else ["model/model.pt", "optim/optim.pt"]
    writes = sharded or dist.get_global_rank() == 0
    assert paths == [f"{folder}/{name}" if writes else None for name in names]
    other, moments = _trained(1)
    options = {"sharded_checkpoint": sharded}
    load_model_checkpoint(other, f"{folder}/{names[0]}", options)
    load_optim_checkpoint(other, moments, f"{folder}/{names[1]}", options)
    for mine, read in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.full_tensor(), read.full_tensor())
        pair = optimizer.state[mine]["exp_avg"], moments.state[read]["exp_avg"]
        assert torch.equal(pair[0].full_tensor(), pair[1].full_tensor())
    gathered = get_model_state_dict(model)
    assert list(gathered) == (list(model.state_dict()) if dist.get_global_rank() == 0 else [])


def _refused(folder: str) -> str:
    model, _ = _trained(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "composer.utils.checkpoint._get_checkpoint_validation_function",
            lambda: lambda path, specs: not path.endswith("__1_0.distcp"),
        )
        with pytest.raises(ValueError) as caught:
            load_model_checkpoint(model, f"{folder}/model", {"sharded_checkpoint": True})
    return str(caught.value)


def _any_tensors(folder: str) -> None:
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(8.0)
    state = {"a": {"b": distribute_tensor(whole, mesh, [Shard(0)])}, "plain": torch.ones(2)}
    assert is_state_dict_sharded(state) and not is_state_dict_sharded({"a": {"b": whole}})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = save_state_dict_to_disk(state, f"{folder}/shards.pt")
    said = any("becomes" in str(warning.message) for warning in caught)
    empty = {"a": {"b": distribute_tensor(torch.zeros(8), mesh, [Shard(0)])}}
    assert path == f"{folder}/shards" and said
    for source in (path, f"file://{path}"):
        read = download_and_load_sharded_state_dict(source, mesh, empty)
        assert torch.equal(read["a"]["b"].full_tensor(), whole)
    monolith = save_state_dict_to_disk({"a": whole}, f"{folder}/whole.pt")
    assert (monolith is None) == (dist.get_global_rank() == 1)
    assert sorted(os.listdir(path)) == [".metadata", "__0_0.distcp", "__1_0.distcp"]


def _all(folder: str) -> str:
    for sharded in (True, False):
        _round_trip(f"{folder}/{sharded}", sharded)
    _any_tensors(folder)
    return _refused(f"{folder}/True")


def test_parts_of_a_sharded_model(tmp_path: Path) -> None:
    for message in run_ranks(_all, 2, str(tmp_path)):
        assert "__1_0.distcp is not valid" in message
    with pytest.raises(ValueError, match="no folder of shards"):
        FileSystemReaderWithValidation(str(tmp_path / "nothing"))
