"""Replacing layers, and parameters in the optimizer."""

import pytest
import torch
from torch import nn

from composer.utils.module_surgery import (
    _find_param_in_optimizer,
    _tensor_in,
    count_module_instances,
    replace_module_classes,
    update_params_in_optimizer,
)


class Doubled(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner


def a_model():
    return nn.Sequential(
        nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 3)), nn.Conv1d(1, 1, 1)
    )


def wider(module, index):
    return nn.Linear(module.in_features, module.out_features, bias=False)


def test_every_instance_is_replaced():
    model = a_model()
    first, second = model[0], model[1][1]
    replaced = replace_module_classes(model, {nn.Linear: wider})
    assert replaced == {first: model[0], second: model[1][1]}
    assert model[0].bias is None and model[1][1].bias is None


def test_numbers_count_those_that_were_refused_too():
    seen = []

    def refuses_the_first(module, index):
        seen.append(index)
        return None if index == 0 else nn.Identity()

    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(3)))
    assert len(replace_module_classes(model, {nn.Linear: refuses_the_first})) == 2
    assert sorted(seen) == [0, 1, 2]
    indices = {nn.Linear: 5}
    replace_module_classes(model, {nn.Linear: lambda module, index: None}, indices=indices)
    assert indices == {nn.Linear: 6}


def test_the_first_policy_that_answers_wins():
    policies = {
        nn.Linear: lambda module, index: None,
        nn.Module: lambda module, index: nn.Identity(),
    }
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    replace_module_classes(model, policies)
    assert [type(child) for child in model] == [nn.Identity, nn.Identity]


def test_a_shared_module_is_replaced_once_everywhere():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared, shared))
    calls = []

    def replace(module, index):
        calls.append(index)
        return nn.Identity()

    replaced = replace_module_classes(model, {nn.Linear: replace})
    assert calls == [0]
    assert model[0][0] is model[1][0] is model[1][1] is replaced[shared]


def test_recursing_into_replacements():
    def wrap(module, index):
        return Doubled(nn.Sequential(nn.ReLU()))

    model = nn.Sequential(nn.Linear(1, 1))
    policies = {nn.Linear: wrap, nn.ReLU: lambda module, index: nn.GELU()}
    replace_module_classes(model, policies, recurse_on_replacements=True)
    assert isinstance(model[0].inner[0], nn.GELU)
    model = nn.Sequential(nn.Linear(1, 1))
    replace_module_classes(model, policies)
    assert isinstance(model[0].inner[0], nn.ReLU)


def test_the_optimizer_gets_the_new_parameters():
    model = a_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kept = model[2].weight
    replace_module_classes(model, {nn.Linear: wider}, optimizers=optimizer)
    held = optimizer.param_groups[0]["params"]
    assert {id(param) for param in held} == {id(param) for param in model.parameters()}
    assert _tensor_in(kept, held)


def test_no_surgery_on_ddp(monkeypatch):
    monkeypatch.setattr("composer.utils.module_surgery.is_model_ddp", lambda model: True)
    with pytest.raises(TypeError, match="DistributedDataParallel"):
        replace_module_classes(a_model(), {})


def test_counting():
    model = a_model()
    assert count_module_instances(model, nn.Linear) == 2
    assert count_module_instances(model, nn.Sequential) == 1
    shared = nn.Linear(1, 1)
    assert count_module_instances(nn.Sequential(shared, shared), nn.Linear) == 1


class TestUpdatingTheOptimizer:
    def setup_method(self):
        self.a, self.b, self.c = (nn.Parameter(torch.zeros(2)) for _ in range(3))

    def test_parameters_in_both_lists_keep_their_state(self):
        optimizer = torch.optim.SGD([self.a, self.b], lr=0.1, momentum=0.9)
        for param in (self.a, self.b):
            param.grad = torch.ones(2)
        optimizer.step()
        update_params_in_optimizer([self.a, self.b], [self.a, self.c], optimizer)
        assert optimizer.param_groups[0]["params"] == [self.a, self.c]
        assert set(optimizer.state) == {self.a}

    def test_the_group_is_that_of_the_old_ones(self):
        optimizer = torch.optim.SGD([{"params": [self.a]}, {"params": [self.b]}], lr=0.1)
        update_params_in_optimizer([self.b], [self.c], [optimizer])
        assert _find_param_in_optimizer(self.c, optimizer) == 1
        assert _find_param_in_optimizer(self.b, optimizer) == -1

    def test_what_does_not_go(self):
        optimizer = torch.optim.SGD([{"params": [self.a]}, {"params": [self.b]}], lr=0.1)
        with pytest.raises(NotImplementedError, match="2"):
            update_params_in_optimizer([self.a], [self.c], [optimizer, optimizer])
        with pytest.raises(RuntimeError, match="2 groups"):
            update_params_in_optimizer([self.a, self.b], [self.c], optimizer)
        with pytest.raises(RuntimeError, match="none of the optimizer's groups"):
            update_params_in_optimizer([self.c], [self.a], optimizer)
        update_params_in_optimizer([self.c], [self.c], optimizer)
