"""The initializers touch what they are for, and only that."""

import math

import pytest
import torch
from torch import nn

from composer.models import Initializer


def _net():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 5))
    for param in net.parameters():
        nn.init.constant_(param, 7.0)
    return net


@pytest.mark.parametrize("initializer", Initializer)
def test_what_is_touched(initializer):
    net = _net()
    net.apply(initializer.get_initializer())
    touched = {name for name, p in net.named_parameters() if not bool((p == 7.0).all())}
    expected = {"0.weight", "3.weight"}
    if initializer in (Initializer.BN_ONES, Initializer.BN_UNIFORM):
        expected = {"1.weight", "1.bias"}
    if initializer is Initializer.LINEAR_LOG_CONSTANT_BIAS:
        expected = {"3.bias"}
    assert touched == expected


def test_values():
    net = _net()
    net.apply(Initializer("bn_ones").get_initializer())
    assert bool((net[1].weight == 1).all() and (net[1].bias == 0).all())
    net.apply(Initializer.LINEAR_LOG_CONSTANT_BIAS.get_initializer())
    torch.testing.assert_close(net[3].bias.data, torch.full((5,), -math.log(5)))
    net.apply(Initializer.BN_UNIFORM.get_initializer())
    assert bool(((net[1].weight >= 0) & (net[1].weight <= 1)).all())
