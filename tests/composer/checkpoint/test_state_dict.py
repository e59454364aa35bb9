"""The parts of a run as dictionaries."""

import json

import pytest
import torch

from composer.checkpoint.state_dict import (
    _is_model_fsdp,
    get_dataset_state_dict,
    get_metadata_state_dict,
    get_model_state_dict,
    get_optim_state_dict,
    get_resumption_state_dict,
)
from composer.devices.device_cpu import DeviceCPU
from composer.utils import get_composer_env_dict
from tests.composer.checkpoint.runs import Harmless, Net, make_state


def test_weights_are_those_of_the_model() -> None:
    model = Net()
    weights = get_model_state_dict(model)
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("include", "ignore", "names"),
    [
        ("0.*", None, {"0.weight", "0.bias"}),
        (["*.bias"], None, {"0.bias", "1.bias"}),
        (None, "*.bias", {"0.weight", "1.weight"}),
        (None, ["0.*", "1.b*"], {"1.weight"}),
    ],
)
def test_patterns_pick_weights(include, ignore, names) -> None:
    assert get_model_state_dict(Net(), include_keys=include, ignore_keys=ignore).keys() == names


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16", torch.bfloat16), ("fp16", torch.float16), (torch.float64, torch.float64)],
)
def test_weights_and_moments_are_cast_but_counts_are_not(precision, dtype) -> None:
    state = make_state(steps=1)
    model = torch.nn.Sequential(state.model, torch.nn.BatchNorm1d(1))
    weights = get_model_state_dict(model, precision=precision)
    assert weights.pop("1.num_batches_tracked").dtype == torch.int64
    assert {value.dtype for value in weights.values()} == {dtype}
    saved = get_optim_state_dict(state.model, state.optimizers[0], precision=precision)
    for moments in saved["state"].values():
        assert moments["step"].dtype == torch.float32
        assert moments["exp_avg"].dtype == moments["exp_avg_sq"].dtype == dtype
    kept = state.optimizers[0].state[state.model[0].weight]
    assert kept["exp_avg"].dtype == torch.float32


def test_the_optimizer_is_keyed_by_names() -> None:
    state = make_state(steps=1)
    saved = get_optim_state_dict(state.model, state.optimizers[0])
    assert set(saved["state"]) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert saved["param_groups"][0]["params"] == list(saved["state"])


def test_what_does_not_go_together() -> None:
    state = make_state()
    model, optimizer = state.model, state.optimizers[0]
    for get in (
        lambda **kwargs: get_model_state_dict(model, **kwargs),
        lambda **kwargs: get_optim_state_dict(model, optimizer, **kwargs),
    ):
        with pytest.raises(ValueError, match="Both include_keys"):
            get(include_keys="a", ignore_keys="b")
        with pytest.raises(ValueError, match="is not"):
            get(sharded_state_dict=True)
    with pytest.raises(NotImplementedError, match="as a whole"):
        get_optim_state_dict(model, optimizer, include_keys="a")
    with pytest.raises(ValueError, match="'int3' must be"):
        get_model_state_dict(model, precision="int3")
    assert not _is_model_fsdp(model)


def test_metadata() -> None:
    plain = get_metadata_state_dict()
    assert plain.keys() == get_composer_env_dict().keys() | {
        "torch_version",
        "python_version",
        "precision",
    }
    assert plain["precision"] == "fp32"
    full = get_metadata_state_dict(Net(), False, torch.bfloat16, DeviceCPU(), 4)
    told = {key: value for key, value in full.items() if plain.get(key) != value}
    assert told == {
        "sharded_state_dict": False,
        "model_name": "Net",
        "dist_backend": "gloo",
        "device_train_microbatch_size": 4,
        "precision": "bf16",
    }
    json.dumps(full)


def test_resumption() -> None:
    state = make_state(Harmless(), steps=2)
    parts = get_resumption_state_dict(state)
    assert list(parts) == [
        "dataset_state",
        "timestamp",
        "schedulers",
        "callbacks",
        "algorithms",
        "rank_zero_seed",
        "run_name",
        "rng",
    ]
    assert parts["timestamp"]["batch"] == 2
    assert parts["callbacks"] == [("Counter", {"seen": 2})]
    assert parts["algorithms"][0][0] == "Harmless"
    assert parts["dataset_state"] == {"train": None, "eval": {}}


class Told(list):
    def state_dict(self, num_samples, from_beginning):
        return {"at": num_samples, "whole": from_beginning}


def test_position_in_the_dataset() -> None:
    loader = torch.utils.data.DataLoader(Told([1, 2]))
    timestamp = make_state(steps=2).timestamp
    told = get_dataset_state_dict(loader, timestamp)
    assert told == {"train": {"at": 6, "whole": True}, "eval": {}}
