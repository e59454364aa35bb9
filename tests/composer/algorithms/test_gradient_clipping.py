"""Clipping equals that of the last upstream releases, and that of one process when sharded."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from composer.algorithms.gradient_clipping.gradient_clipping import (
    GradientClipping,
    _apply_agc,
    _get_clipped_gradient_coeff,
    _unitwise_norm,
    apply_gradient_clipping,
)
from composer.core.event import Event
from tests.composer.plugins import HandRun
from tests.launch import run_ranks

GOLDEN = Path(__file__).parents[2] / "golden" / "trainer" / "functional.npz"

# Sizes that two ranks cannot share evenly, a vector, a scalar, and large and small gradients.
SHAPES = [(5, 3), (2, 3, 2), (7,), (1, 4), ()]


@pytest.mark.parametrize("kind", ["norm", "value", "adaptive"])
def test_golden(kind):
    record = np.load(GOLDEN)
    names = [f"{layer}.{part}" for layer in (0, 1) for part in ("weight", "bias")]
    parameters = []
    for name in names:
        parameter = torch.nn.Parameter(torch.from_numpy(record[f"clip_{kind}|w.{name}"]))
        parameter.grad = torch.from_numpy(record[f"clip_{kind}|grad_in.{name}"].copy())
        parameters.append(parameter)
    apply_gradient_clipping(parameters, kind, float(record[f"clip_{kind}|threshold"]), False)
    for name, parameter in zip(names, parameters):
        expected = record[f"clip_{kind}|grad_out.{name}"]
        np.testing.assert_allclose(parameter.grad.numpy(), expected, atol=1e-6)


def test_golden_unitwise_norm():
    record = np.load(GOLDEN)
    norms = _unitwise_norm(torch.from_numpy(record["unitwise_norm|w4"]))
    np.testing.assert_allclose(norms.numpy(), record["unitwise_norm|n4"], atol=1e-6)


def make_parameters(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    parameters = []
    for i, shape in enumerate(SHAPES):
        parameter = torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype))
        parameter.grad = torch.randn(shape, generator=generator, dtype=dtype) * 10.0**-i
        parameters.append(parameter)
    parameters.append(torch.nn.Parameter(torch.ones(2)))  # got no gradient
    return parameters


def _clip_sharded(kind: str, threshold: float, layout: str) -> list[list[float]]:
    """Clips parameters sharded over the ranks; returns the whole gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    world_size = int(os.environ["WORLD_SIZE"])
    line = init_device_mesh("cpu", (world_size,))
    grid = init_device_mesh("cpu", (1, world_size), mesh_dim_names=("replicate", "shard"))
    parameters = []
    for i, whole in enumerate(make_parameters()):
        mesh, placements = line, [Shard(0) if whole.ndim else Replicate()]
        if layout == "second_axis" and whole.ndim > 1:
            placements = [Shard(1)]
        if layout == "mixed":  # plain tensors, and two meshes
            if i == 0:
                parameters.append(whole)
                continue
            if i % 2:
                mesh, placements = grid, [Replicate(), *placements]
        parameter = torch.nn.Parameter(distribute_tensor(whole.detach(), mesh, placements))
        if whole.grad is not None:
            parameter.grad = distribute_tensor(whole.grad, mesh, placements)
        parameters.append(parameter)
    apply_gradient_clipping(parameters, kind, threshold, True)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [
        (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).flatten().tolist()
        for grad in gradients
    ]


KINDS = (("norm", 0.5), ("value", 0.05), ("adaptive", 0.01))
LAYOUTS = ("rows", "second_axis", "mixed")


def _clip_in_all_ways() -> dict[str, list[list[float]]]:
    return {
        f"{kind} {layout}": _clip_sharded(kind, threshold, layout)
        for kind, threshold in KINDS
        for layout in LAYOUTS
    }


def test_b102_b103_sharded_gradients_are_clipped_like_whole_ones():
    found = run_ranks(_clip_in_all_ways, 2)
    for kind, threshold in KINDS:
        whole = make_parameters()
        apply_gradient_clipping(whole, kind, threshold, False)
        expected = [p.grad.flatten().tolist() for p in whole if p.grad is not None]
        for layout in LAYOUTS:
            for of_rank in found:
                for one, other in zip(of_rank[f"{kind} {layout}"], expected, strict=True):
                    assert one == pytest.approx(other, rel=1e-5), (kind, layout)


def _fully_sharded_steps(kind: str, threshold: float) -> list[float]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    if int(os.environ["WORLD_SIZE"]) > 1:
        fully_shard(model[0])
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    rows = torch.randn(4, 4)
    per_rank = len(rows) // int(os.environ["WORLD_SIZE"])
    start = int(os.environ["RANK"]) * per_rank
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        model(rows[start : start + per_rank]).square().mean().backward()
        apply_gradient_clipping(model, kind, threshold, True)
        optimizer.step()
        with torch.no_grad():
            losses.append(model(rows).square().mean().item())
    return losses


def _fully_sharded_steps_of_all_kinds() -> list[list[float]]:
    return [
        _fully_sharded_steps(*kind)
        for kind in (("norm", 0.05), ("value", 0.01), ("adaptive", 0.01))
    ]


@pytest.mark.slow
def test_b102_fully_shard_trains_like_one_process():
    [alone] = run_ranks(_fully_sharded_steps_of_all_kinds, 1)
    for losses in run_ranks(_fully_sharded_steps_of_all_kinds, 2):
        for one, other in zip(losses, alone):
            assert one == pytest.approx(other, rel=1e-5)


def test_b103_value_clipping_clamps_elements():
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 0.5])
    apply_gradient_clipping([parameter], "value", 1.0, False)
    assert parameter.grad.tolist() == [1.0, 0.5]


def test_norm_clipping_is_torchs_own_to_the_bit():
    ours, theirs = make_parameters(), make_parameters()
    apply_gradient_clipping(ours, "norm", 0.5)
    torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    for one, other in zip(ours[:-1], theirs[:-1]):
        assert torch.equal(one.grad, other.grad)


def test_adaptive_coefficients():
    weights, gradient = (
        torch.tensor([[3.0, 4.0], [0.0, 0.0]]),
        torch.tensor([[0.0, 10.0], [0.0, 0.0]]),
    )
    assert _get_clipped_gradient_coeff(weights, gradient, 0.5).tolist() == [[0.25], [1.0]]
    # A gradient on weights that are zero is clipped to zero; one that is small is left alone.
    assert _get_clipped_gradient_coeff(torch.zeros(2), torch.ones(2), 0.5).tolist() == [0.0]
    assert _get_clipped_gradient_coeff(torch.ones(2), 1e-3 * torch.ones(2), 0.5).tolist() == [1.0]


def test_agc_leaves_parameters_without_gradient_alone():
    parameters = make_parameters()
    _apply_agc(parameters, 1e-3)
    assert parameters[-1].grad is None


def test_nothing_to_clip():
    for kind in ("norm", "value", "adaptive"):
        apply_gradient_clipping(torch.nn.Linear(2, 2), kind, 1.0)


def test_it_runs_once_a_batch_and_before_callbacks():
    from composer.core.callback import Callback

    norms = []

    class Look(Callback):
        def after_train_batch(self, state, logger):
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in state.model.parameters()]))

    clipping = GradientClipping("norm", 1e-3)
    run = HandRun(Look(), algorithms=[clipping], max_duration="2ba").loaded().fit()
    assert [round(float(norm), 6) for norm in norms] == [1e-3, 1e-3]
    assert not clipping.match(Event.BATCH_END, run.state)
    assert repr(clipping) == "GradientClipping(clipping_type='norm',clipping_threshold=0.001)"
    run.close()


@pytest.mark.parametrize(
    ("kind", "threshold", "message"),
    [
        ("l7", 1.0, "clipping_type"),
        ("norm", 0.0, "clipping_threshold"),
        ("norm", float("nan"), "clipping"),
    ],
)
def test_wrong_settings(kind, threshold, message):
    with pytest.raises(ValueError, match=message):
        GradientClipping(kind, threshold)


def test_unknown_type_of_the_functional_form():
    with pytest.raises(ValueError, match="one of norm, value, adaptive"):
        apply_gradient_clipping(torch.nn.Linear(2, 2), "l7", 1.0)
