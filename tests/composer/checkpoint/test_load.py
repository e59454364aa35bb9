"""Parts of a run, loaded from the folder of a save."""

import collections
import datetime
import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from composer.checkpoint.load import (
    CheckpointLoadOptions,
    _RestrictedUnpickler,
    load_checkpoint,
    load_model_checkpoint,
    load_optim_checkpoint,
    load_resumption_checkpoint,
)
from composer.checkpoint.save import save_checkpoint_to_disk
from composer.core.state import State
from tests.composer.checkpoint.runs import Harmless, Net, make_state

EVERYTHING = CheckpointLoadOptions(load_optimizer=True, load_resumption_state=True)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[str, State]:
    state = make_state(Harmless(), steps=3)
    return save_checkpoint_to_disk(str(tmp_path), state), state


def weights(state: State) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.model.state_dict().items()}


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_all_comes_back(saved: tuple[str, State], prefix: str) -> None:
    folder, old = saved
    new = make_state(Harmless(), run_name="other")
    rng = load_checkpoint(prefix + folder, EVERYTHING, state=new)
    assert same(weights(new), weights(old))
    assert new.timestamp == old.timestamp and new.run_name == "run"
    assert new.callbacks[0].seen == 3 and new.schedulers[0].last_epoch == 3
    moments = [state.optimizers[0].state_dict()["state"] for state in (old, new)]
    for number, moment in moments[0].items():
        assert same(moment, moments[1][number])
    assert rng is not None and {"python", "numpy", "torch"} <= set(rng[0])


def test_by_default_only_the_weights(saved: tuple[str, State]) -> None:
    new = make_state()
    assert load_checkpoint(saved[0], {}, state=new) is None
    assert same(weights(new), weights(saved[1]))
    assert int(new.timestamp.batch) == 0 and not new.optimizers[0].state


def test_parts_at_other_places(saved: tuple[str, State]) -> None:
    folder, old = saved
    for name in ("model/model.pt", "optim/optim.pt", "resumption.pkl"):
        os.rename(f"{folder}/{name}", f"{folder}/{os.path.basename(name)}.moved")
    new = make_state()
    load_checkpoint(
        folder,
        EVERYTHING,
        new.model,
        new.optimizers[0],
        new,
        model_child_path="model.pt.moved",
        optim_child_path="optim.pt.moved",
        resumption_filename="resumption.pkl.moved",
    )
    assert same(weights(new), weights(old)) and int(new.timestamp.batch) == 3


def test_nobody_to_load_into(saved: tuple[str, State]) -> None:
    with pytest.raises(ValueError, match="Give a model"):
        load_checkpoint(saved[0], {})
    with pytest.raises(ValueError, match="needs an optim"):
        load_checkpoint(saved[0], {"load_optimizer": True}, model=Net())
    with pytest.raises(ValueError, match="needs a state"):
        load_checkpoint(saved[0], {"load_resumption_state": True}, model=Net())


def test_b54_weights_that_do_not_fit(saved: tuple[str, State]) -> None:
    path = f"{saved[0]}/model/model.pt"
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1), torch.nn.Linear(1, 1))
    with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict"):
        load_model_checkpoint(model, path)
    assert load_model_checkpoint(model, path, {"strict": False}) == ([], {})
    assert torch.equal(model[0].weight, saved[1].model[0].weight)
    other = Net()
    before = other[1].weight.clone()
    load_model_checkpoint(other, path, {"include_keys": "0.*"})
    assert torch.equal(other[0].weight, saved[1].model[0].weight)
    assert torch.equal(other[1].weight, before)
    with pytest.raises(ValueError, match="not both"):
        load_model_checkpoint(model, path, {"include_keys": "a", "ignore_keys": "b"})
    assert load_model_checkpoint(model) == ([], {})


def test_shards_need_a_sharded_model(saved: tuple[str, State]) -> None:
    state = make_state()
    for options in ({"sharded_checkpoint": True}, CheckpointLoadOptions(sharded_checkpoint=True)):
        with pytest.raises(ValueError, match="sharded"):
            load_model_checkpoint(state.model, saved[0], options)
        with pytest.raises(ValueError, match="sharded"):
            load_optim_checkpoint(state.model, state.optimizers[0], saved[0], options)
    with pytest.raises(NotImplementedError, match="shard the model"):
        load_model_checkpoint(state.model, saved[0], {"shard_as_needed_during_load": True})


def test_loading_draws_nothing(saved: tuple[str, State]) -> None:
    before = torch.get_rng_state()
    load_checkpoint(saved[0], {}, state=make_state())
    state = make_state()
    before = torch.get_rng_state()
    load_checkpoint(saved[0], {}, state=state)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, (None, True)], "b": {1, 2}, "c": b"x", "d": complex(1, 2)},
        collections.OrderedDict(a=1),
        collections.defaultdict(list, a=[1]),
        datetime.timedelta(seconds=3),
        datetime.datetime(2020, 1, 2, tzinfo=datetime.timezone.utc),
        np.float64(2.5),
        torch.Size([1, 2]),
        torch.bfloat16,
        torch.device("cpu"),
    ],
)
def test_plain_values_come_back(value: Any) -> None:
    for protocol in (4, pickle.HIGHEST_PROTOCOL):
        loaded = _RestrictedUnpickler(io.BytesIO(pickle.dumps(value, protocol))).load()
        assert loaded == value and type(loaded) is type(value)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint32"])
def test_arrays_and_tensors_come_back(dtype: str) -> None:
    array = np.arange(4).astype(dtype)
    values = [array, torch.nn.Parameter(torch.randn(2, 3)), torch.arange(3, dtype=torch.uint8)]
    read = _RestrictedUnpickler(io.BytesIO(pickle.dumps(values))).load()
    assert read[0].dtype == array.dtype and np.array_equal(read[0], array)
    assert torch.equal(read[1], values[1]) and isinstance(read[1], torch.nn.Parameter)
    assert torch.equal(read[2], values[2])


class Attack:
    def __init__(self, call: Any, *args: Any) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> Any:
        return self.call, self.args


def test_nothing_else_is_named(tmp_path: Path) -> None:
    hidden = io.BytesIO()
    torch.save({"a": Attack(os.mkdir, str(tmp_path / "ran"))}, hidden)
    attacks = [
        Attack(os.mkdir, str(tmp_path / "ran")),
        Attack(eval, f"__import__('os').mkdir({str(tmp_path / 'ran')!r})"),
        Attack(getattr, 1, "real"),
        Attack(torch.load, str(tmp_path)),
    ]
    for attack in attacks:
        data = pickle.dumps({"timestamp": attack})
        with pytest.raises(pickle.UnpicklingError, match="global not in allowlist"):
            _RestrictedUnpickler(io.BytesIO(data)).load()
    data = pickle.dumps(Attack(torch.storage._load_from_bytes, hidden.getvalue()))
    with pytest.raises(pickle.UnpicklingError):
        _RestrictedUnpickler(io.BytesIO(data)).load()
    path = tmp_path / "resumption.pkl"
    path.write_bytes(pickle.dumps(attacks[0]))
    with pytest.raises(pickle.UnpicklingError, match="global not in allowlist"):
        load_resumption_checkpoint(make_state(), str(path))
    assert not (tmp_path / "ran").exists()
