"""Layers are split as a plan says, and the optimizer follows."""

from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn

from composer.distributed.mesh import TENSOR, build_mesh
from composer.distributed.tensor_parallel import prepare_tp_module
from composer.utils.gradients import total_norm
from composer.utils.parallelism import TPConfig
from tests.launch import run_ranks


class _Residual(nn.Module):
    """A norm, a feed-forward layer and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.ffn = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.ffn(self.norm(inputs))


def _plan(of_shares: bool) -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    if of_shares:
        return {
            "ffn": PrepareModuleInput(
                input_layouts=Shard(0), desired_input_layouts=Replicate(), use_local_output=True
            ),
            "f*.0": ColwiseParallel(),
            "f*.2": RowwiseParallel(output_layouts=Shard(0)),
        }
    return {
        "norm": SequenceParallel(sequence_dim=1, use_local_output=True),
        "ffn.0": ColwiseParallel(input_layouts=Shard(1)),
        "ffn.2": RowwiseParallel(output_layouts=Shard(1)),
    }


def _whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "device_mesh") else tensor


def _worst_gradients(of_shares: bool) -> tuple[float, float, bool]:
    torch.manual_seed(0)
    whole, split = _Residual(), _Residual()
    split.load_state_dict(whole.state_dict())
    optimizer = torch.optim.SGD(split.parameters(), lr=0.1)
    mesh = build_mesh("cpu", {TENSOR: 2})[TENSOR]
    prepare_tp_module(split, optimizer, TPConfig(mesh, 2, _plan(of_shares)))
    inputs = torch.randn(3, 4, 8)
    # With a plan that splits sequences, a rank has its half of them.
    own = inputs if of_shares else inputs.chunk(2, dim=1)[mesh.get_local_rank()]
    for _ in range(2):
        split(own).square().sum().backward()
        whole(inputs).square().sum().backward()
    pairs = list(zip(split.parameters(), whole.parameters(), strict=True))
    worst = max((_whole(ours.grad) - theirs.grad).abs().max().item() for ours, theirs in pairs)
    norms = [total_norm([p.grad for p in m.parameters()]).item() for m in (split, whole)]  # type: ignore[misc]
    held = {id(p) for p in optimizer.param_groups[0]["params"]}
    return worst, abs(norms[0] - norms[1]), held == {id(p) for p in split.parameters()}


def _both_plans() -> list[tuple[float, float, bool]]:
    return [_worst_gradients(True), _worst_gradients(False)]


def test_plans_give_the_gradients_of_one_process() -> None:
    for worst, norm, is_held in run_ranks(_both_plans, 2)[0]:
        assert worst < 1e-4
        assert norm < 1e-4
        assert is_held


def test_settings_that_cannot_be_are_refused() -> None:
    model = _Residual()
    with pytest.raises(ValueError, match="has no layer_plan"):
        prepare_tp_module(model, None, TPConfig(tensor_parallel_degree=2))
    few = torch.optim.SGD(model.ffn.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="leaves out norm.weight, norm.bias"):
        prepare_tp_module(model, few, TPConfig())
    groups = torch.optim.SGD([{"params": [p]} for p in model.parameters()], lr=0.1)
    with pytest.raises(RuntimeError, match="Received: 6 groups"):
        prepare_tp_module(model, groups, TPConfig())
    with pytest.raises(NotImplementedError, match="takes one optimizer; 2 were given"):
        prepare_tp_module(model, [few, groups], TPConfig())
