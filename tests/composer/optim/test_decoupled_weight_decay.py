"""The optimizers against recorded runs of the last upstream release, and against plain formulas."""

import copy
import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from composer.optim import DecoupledAdamW, DecoupledSGDW

GOLDEN = Path(__file__).parents[2] / "golden" / "trainer"
OPTIMIZERS = {"DecoupledAdamW": DecoupledAdamW, "DecoupledSGDW": DecoupledSGDW}
RUNS = {
    run["name"]: run
    for run in json.loads((GOLDEN / "runs.json").read_text())
    if run["optimizer"] in OPTIMIZERS
    and run["model"] == "mlp"
    and not run["algorithms"]
    # The second recipes differ in the micro-batch or the loss, which a plain loop does not have.
    and run["name"].startswith(("adamw", "sgdw"))
}
FORMS = {
    "default": {},
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "single": {"foreach": False},
}


def _mlp(weights):
    mlp = torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 16),
        torch.nn.Tanh(),
        torch.nn.Linear(16, 4),
    )
    mlp.load_state_dict({k.split(".", 1)[1].removeprefix("module."): v for k, v in weights.items()})
    return mlp


def _tensors(npz, prefix):
    return {k: torch.from_numpy(npz[k]) for k in npz.files if k.startswith(prefix)}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", RUNS)
def test_recorded_runs(name, form):
    run = RUNS[name]
    data = np.load(GOLDEN / "data.npz")
    mlp = _mlp(_tensors(data, "mlp."))
    wanted = run["optimizer_defaults"]
    keys = {"DecoupledAdamW": ("lr", "betas", "eps", "weight_decay", "amsgrad")}.get(
        run["optimizer"], ("lr", "momentum", "dampening", "weight_decay", "nesterov")
    )
    optimizer = OPTIMIZERS[run["optimizer"]](
        mlp.parameters(), **{k: wanted[k] for k in keys}, **FORMS[form]
    )
    x, y = torch.from_numpy(data["X"]), torch.from_numpy(data["Y"])
    losses = []
    for step, lrs in enumerate(run["lr_used"]):
        rows = slice(step % 4 * 8, step % 4 * 8 + 8)
        optimizer.param_groups[0]["lr"] = lrs[0]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(mlp(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(run["loss"], abs=1e-5)
    final = _tensors(np.load(GOLDEN / "final_weights.npz"), f"{name}|")
    for key, value in final.items():
        torch.testing.assert_close(
            mlp.state_dict()[key.split("|")[1].removeprefix("module.")], value, atol=1e-5, rtol=0
        )
    assert final


def test_defaults_are_upstreams():
    group = DecoupledAdamW([torch.nn.Parameter(torch.ones(1))]).param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (
        1e-3,
        (0.9, 0.95),
        1e-8,
        1e-5,
    )
    assert set(RUNS["adamw_no_scheduler"]["optimizer_defaults"]) <= set(group)
    group = DecoupledSGDW([torch.nn.Parameter(torch.ones(1))], lr=0.1).param_groups[0]
    assert set(RUNS["sgdw_multistep"]["optimizer_defaults"]) <= set(group)


@pytest.mark.parametrize("cls", OPTIMIZERS.values())
def test_B31_decay_follows_the_schedule_alone(cls):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = cls([weight], lr=0.1, weight_decay=0.01)
    weight.grad = torch.zeros(3)
    optimizer.step()
    torch.testing.assert_close(weight.data, torch.full((3,), 0.99))
    optimizer.param_groups[0]["lr"] = 0.05
    optimizer.step()
    torch.testing.assert_close(weight.data, torch.full((3,), 0.99 * 0.995))
    optimizer.param_groups[0]["lr"] = 0.0
    before = weight.data.clone()
    optimizer.step()
    torch.testing.assert_close(weight.data, before, atol=0, rtol=0)


@pytest.mark.parametrize("cls", OPTIMIZERS.values())
def test_B31_zero_learning_rate_at_construction(cls):
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = cls([weight], lr=0.0, weight_decay=0.01)
    weight.grad = torch.zeros(3)
    optimizer.step()
    torch.testing.assert_close(weight.data, torch.full((3,), 0.99))


def _reference_adamw(w, grads, lrs, lr0, wd, betas, eps, amsgrad):
    m = v = largest = torch.zeros_like(w)
    for t, (g, lr) in enumerate(zip(grads, lrs, strict=True), 1):
        w = w * (1 - wd * lr / lr0)
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        largest = torch.maximum(largest, v)
        root = (largest if amsgrad else v).sqrt() / (1 - betas[1] ** t) ** 0.5
        w = w - lr / (1 - betas[0] ** t) * m / (root + eps)
    return w


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_adamw_is_its_formula(form, amsgrad):
    torch.manual_seed(1)
    start, grads = (
        torch.randn(7, dtype=torch.float64),
        [torch.randn(7, dtype=torch.float64) for _ in range(6)],
    )
    lrs = [0.1, 0.1, 0.05, 0.02, 0.2, 0.01]
    weight = torch.nn.Parameter(start.clone())
    optimizer = DecoupledAdamW([weight], lr=0.1, weight_decay=0.02, amsgrad=amsgrad, **FORMS[form])
    for grad, lr in zip(grads, lrs, strict=True):
        optimizer.param_groups[0]["lr"] = lr
        weight.grad = grad.clone()
        optimizer.step()
    expected = _reference_adamw(start, grads, lrs, 0.1, 0.02, (0.9, 0.95), 1e-8, amsgrad)
    torch.testing.assert_close(weight.data, expected)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_sgdw_is_its_formula_also_for_a_late_parameter(form, nesterov):
    torch.manual_seed(1)
    dampening = 0.0 if nesterov else 0.3
    weights = [torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(4))]
    optimizer = DecoupledSGDW(
        weights,
        0.1,
        momentum=0.9,
        dampening=dampening,
        weight_decay=0.01,
        nesterov=nesterov,
        **FORMS[form],
    )
    expected, buffers = [torch.ones(4), torch.ones(4)], [None, None]
    for step in range(4):
        for i, weight in enumerate(weights):
            weight.grad = None if i == 1 and step < 2 else torch.randn(4)
            if weight.grad is None:
                continue
            g = weight.grad.clone()
            buffers[i] = g if buffers[i] is None else 0.9 * buffers[i] + (1 - dampening) * g
            d = g + 0.9 * buffers[i] if nesterov else buffers[i]
            expected[i] = expected[i] * 0.99 - 0.1 * d
        optimizer.step()
    torch.testing.assert_close([w.data for w in weights], expected)


@pytest.mark.parametrize("cls", OPTIMIZERS.values())
def test_state_round_trip_goes_on_to_the_bit(cls):
    torch.manual_seed(2)
    kwargs = {"lr": 0.1, "weight_decay": 1e-4} | ({"momentum": 0.9} if cls is DecoupledSGDW else {})
    first = [torch.nn.Parameter(torch.randn(5, 3)), torch.nn.Parameter(torch.randn(3))]
    grads = [[torch.randn_like(p) for p in first] for _ in range(4)]

    def run(optimizer, params, some):
        for step in some:
            for p, g in zip(params, step, strict=True):
                p.grad = g.clone()
            optimizer.step()

    one = cls(first, **kwargs)
    run(one, first, grads[:2])
    second = [torch.nn.Parameter(p.detach().clone()) for p in first]
    two = cls(second, **kwargs)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    run(one, first, grads[2:])
    run(two, second, grads[2:])
    torch.testing.assert_close(first, second, atol=0, rtol=0)


def test_groups_keep_their_own_initial_rate():
    a, b = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = DecoupledAdamW([{"params": [a], "lr": 0.5}], lr=0.1, weight_decay=1e-4)
    optimizer.add_param_group({"params": [b]})
    assert [group["initial_lr"] for group in optimizer.param_groups] == [0.5, 0.1]


def test_closure_runs_with_gradients_and_its_loss_is_returned():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = DecoupledSGDW([weight], lr=0.5)

    def closure():
        loss = weight.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2
    torch.testing.assert_close(weight.data, torch.full((2,), 0.5))


def test_sparse_gradients_are_refused():
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        DecoupledAdamW(embedding.parameters()).step()


def test_high_decay_is_logged(caplog):
    with caplog.at_level(logging.WARNING):
        DecoupledSGDW([torch.nn.Parameter(torch.ones(1))], lr=0.1, weight_decay=0.1)
    assert "weight_decay=0.1" in caplog.text


def test_per_parameter_metrics():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(6))
    optimizer = DecoupledAdamW([weight], lr=0.01, weight_decay=1e-4)
    assert optimizer.report_per_parameter_metrics(weight, "w", {}) == {}
    weight.grad = torch.randn(6)
    optimizer.step()
    metrics = optimizer.report_per_parameter_metrics(weight, "w", {})
    assert set(metrics) == {f"l2_norm/{kind}/w" for kind in ("moment", "param", "update", "grad")}
    torch.testing.assert_close(metrics["l2_norm/grad/w"], weight.grad.norm())
    torch.testing.assert_close(metrics["l2_norm/param/w"], weight.detach().norm())
    # After one step the corrected moments are the gradient and its square.
    update = 0.01 * weight.grad.sign() - 1e-4 * weight.detach()
    torch.testing.assert_close(metrics["l2_norm/update/w"], update.norm(), rtol=1e-5, atol=1e-6)
    reduced = optimizer.dist_reduce_metrics(optimizer.pre_reduce_metrics(dict(metrics)))
    torch.testing.assert_close(reduced, metrics)
