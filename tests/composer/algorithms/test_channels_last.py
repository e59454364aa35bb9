"""Channels last changes the layout of weights and nothing else."""

import pytest
import torch
from torch import nn

from composer.algorithms import ChannelsLast, NoMatchError
from tests.composer.algorithms.surgery import apply_at


def test_layout_changes_and_results_stay():
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    x = torch.randn(2, 4, 9, 9)
    before = model(x)
    apply_at(ChannelsLast(), model)
    after = model(x)
    assert all(
        p.is_contiguous(memory_format=torch.channels_last)
        for p in model[0].parameters()
        if p.ndim == 4
    )
    assert after.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(after, before)


def test_nothing_to_change():
    with pytest.raises(NoMatchError, match="four dimensions"):
        apply_at(ChannelsLast(), nn.Linear(2, 2))
    with pytest.raises(ValueError, match="does not combine with FSDP"):
        apply_at(ChannelsLast(), nn.Conv2d(2, 2, 1), fsdp_config=object())
    assert not ChannelsLast.required_on_load()
    assert repr(ChannelsLast()) == "ChannelsLast()"
