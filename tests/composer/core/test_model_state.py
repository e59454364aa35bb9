"""Weights and moments by name, through wrappers."""

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

from composer.core.model_state import (
    get_model_state,
    get_optimizer_state,
    get_state_names,
    set_model_state,
    set_optimizer_state,
    strip_ddp_prefix,
)
from tests.launch import run_ranks


def a_model():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    model[1].weight.requires_grad_(False)
    return model


def stepped(model, optimizer):
    model(torch.randn(2, 3)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def two_groups(model):
    return torch.optim.AdamW(
        [
            {"params": [model[0].weight], "weight_decay": 0.1},
            {"params": [model[0].bias, model[1].bias], "weight_decay": 0.0},
        ],
        lr=0.1,
    )


def test_groups_and_moments_come_back():
    model = a_model()
    optimizer = stepped(model, two_groups(model))
    saved = get_optimizer_state(model, optimizer)
    assert [group["params"] for group in saved["param_groups"]] == [
        ["0.weight"],
        ["0.bias", "1.bias"],
    ]
    other_model = a_model()
    other = two_groups(other_model)
    for group in other.param_groups:
        group["lr"] = 9.0
    set_model_state(other_model, get_model_state(model), strict=True)
    set_optimizer_state(other_model, other, saved)
    assert [group["lr"] for group in other.param_groups] == [0.1, 0.1]
    moments = other.state[other_model[0].weight]
    assert torch.equal(moments["exp_avg"], optimizer.state[model[0].weight]["exp_avg"])
    assert moments["step"] == 1
    again = get_optimizer_state(other_model, other)
    assert list(again["state"]) == list(saved["state"]), "loading takes nothing out of the dict"


def test_an_optimizer_that_never_stepped_is_not_stepped():
    model = a_model()
    optimizer = two_groups(model)
    saved = get_optimizer_state(model, optimizer)
    assert saved["state"] == {} and not optimizer.state
    assert [group["params"] for group in saved["param_groups"]] == [
        ["0.weight"],
        ["0.bias", "1.bias"],
    ]
    other = two_groups(model)
    other.param_groups[1]["lr"] = 9.0
    set_optimizer_state(model, other, saved)
    assert other.param_groups[1]["lr"] == 0.1 and not other.state
    with pytest.raises(ValueError, match="no parameter group"):
        set_optimizer_state(model, torch.optim.AdamW(model.parameters()), saved)


def test_the_model_itself_may_have_a_module_child():
    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = torch.nn.Linear(1, 1)

    state = {"module.weight": 1, "module.bias": 2}
    assert strip_ddp_prefix(Holder(), state) is state
    assert strip_ddp_prefix(torch.nn.Linear(1, 1), state) == {"weight": 1, "bias": 2}


def wrapped_and_plain():
    torch.manual_seed(0)
    model = a_model()
    wrapped = DistributedDataParallel(model)
    optimizer = stepped(wrapped, two_groups(model))
    for name in get_model_state(wrapped):
        assert not name.startswith("module")
    saved, moments = get_model_state(wrapped), get_optimizer_state(wrapped, optimizer)
    plain = a_model()
    other = two_groups(plain)
    set_model_state(plain, saved, strict=True)
    set_optimizer_state(plain, other, moments)
    assert torch.equal(plain[0].weight, model[0].weight)
    assert torch.equal(
        other.state[plain[0].weight]["exp_avg"], optimizer.state[model[0].weight]["exp_avg"]
    )
    fresh = two_groups(model)
    assert get_optimizer_state(wrapped, fresh)["param_groups"][0]["params"] == ["0.weight"]


def test_ddp_leaves_no_prefix():
    run_ranks(wrapped_and_plain, 2)


def test_names_are_those_of_the_weights_whatever_wraps_them() -> None:
    ends = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    inner = torch.nn.Sequential(ends[0], torch.nn.BatchNorm1d(2), ends[1])
    inner[0] = checkpoint_wrapper(inner[0])
    inner[2] = torch.compile(inner[2], backend="eager")
    model = torch.compile(inner, backend="eager")
    names = get_state_names(model)
    assert len(names) == 9 and sorted(names) == sorted(get_model_state(model))
