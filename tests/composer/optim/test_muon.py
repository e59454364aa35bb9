"""Muon against torch's own, its rule for parameters, its shards, and cautious decay."""

from typing import Any

import pytest
import torch

from composer import Trainer
from composer.optim import DecoupledAdamW, DecoupledMuon
from composer.optim.muon import hidden_matrices, orthogonalised
from llmfoundry.builders.optimizers import build_optimizer
from tests.composer.models.conftest import KINDS
from tests.composer.optim.references import (
    Make,
    Model,
    resumed_in_shards,
    sharded_steps,
    steps,
    weights,
)
from tests.cross.algorithm_models import trainer
from tests.launch import run_ranks


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (7, 7)])
def test_one_matrix_is_torchs_muon(shape: tuple[int, int], nesterov: bool) -> None:
    torch.manual_seed(0)
    start = torch.randn(shape)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    holder = torch.nn.Module()
    holder.matrix = ours
    settings: dict[str, Any] = {"lr": 0.02, "momentum": 0.9, "nesterov": nesterov}
    muon = DecoupledMuon(holder, weight_decay=0.1 * 0.02, **settings)
    torchs = torch.optim.Muon(
        [theirs], weight_decay=0.1, adjust_lr_fn="match_rms_adamw", **settings
    )
    for _ in range(6):
        gradient = torch.randn(shape)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        muon.step()
        torchs.step()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)
    assert (ours - start).abs().max() > 0.01


def test_updates_have_the_size_of_adams() -> None:
    for shape in ((64, 64), (256, 32), (32, 256)):
        torch.manual_seed(1)
        matrix = orthogonalised(torch.randn(shape)).float()
        values = torch.linalg.svdvals(matrix)
        assert 0.5 < float(values.min()) and float(values.max()) < 1.3
        size = 0.2 * max(shape) ** 0.5 * matrix.square().mean().sqrt()
        assert 0.15 < float(size) < 0.25


def test_everything_else_is_adamw() -> None:
    ours, theirs = Model(), Model()
    muon = DecoupledMuon(ours, lr=0.01)
    adam = DecoupledAdamW(theirs.parameters(), lr=0.01)
    ours(torch.arange(8)).square().sum().backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        other.grad = None if one.grad is None else one.grad.clone()
    muon.step()
    adam.step()
    found, expected = weights(ours), weights(theirs)
    matrices = {"up.weight", "down.weight"}
    for name, value in found.items():
        assert torch.equal(value, expected[name]) == (name not in matrices), name


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_embeddings_and_heads_of_transformers_are_left_out(kind: str) -> None:
    import transformers

    for tie in (True, False):
        model = KINDS[kind](transformers, tie_word_embeddings=tie)
        names = {n for n, p in model.named_parameters() if p in hidden_matrices(model)}
        inside = {n for n, p in model.named_parameters() if p.ndim == 2 and ".layer" in n}
        inside |= {n for n, p in model.named_parameters() if p.ndim == 2 and ".h." in n}
        assert inside <= names
        outside = {n for n in names - inside}
        assert outside <= {"cls.predictions.transform.dense.weight"}, outside


def test_the_last_linear_layer_is_the_head_and_groups_stay_groups() -> None:
    model = Model()
    assert hidden_matrices(model) == {model.up.weight, model.down.weight}
    groups = [
        {"params": [model.up.weight, model.up.bias], "lr": 0.5},
        {"params": [model.down.weight, model.head.weight]},
    ]
    optimizer = DecoupledMuon(groups, lr=0.1, model=model)
    found = [(g["lr"], g["is_orthogonalised"], len(g["params"])) for g in optimizer.param_groups]
    assert found == [(0.5, True, 1), (0.5, False, 1), (0.1, True, 1), (0.1, False, 1)]
    with pytest.raises(ValueError, match="give the model itself"):
        DecoupledMuon(model.parameters())
    with pytest.raises(ValueError, match="no hidden matrix"):
        DecoupledMuon(torch.nn.Linear(3, 3))
    with pytest.raises(ValueError, match="momentum=1.5"):
        DecoupledMuon(model, momentum=1.5)


def test_a_recipe_builds_it() -> None:
    settings = {"lr": 0.1, "param_groups": [{"param_str_match": "up", "lr": 0.2}]}
    optimizer = build_optimizer(Model(), "decoupled_muon", settings)
    assert [g["is_orthogonalised"] for g in optimizer.param_groups] == [True, False, True, False]


def muon(model: torch.nn.Module) -> torch.optim.Optimizer:
    return DecoupledMuon(model, lr=0.02, cautious_weight_decay=True, weight_decay=1e-3)


@pytest.mark.slow
def test_sharded_it_is_that_of_one_process_and_resumes(tmp_path: Any) -> None:
    alone = Model()
    steps(alone, muon(alone), 4)
    first, second = run_ranks(sharded_steps, 2, muon)
    for name, value in weights(alone).items():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], value, rtol=0, atol=2e-4)
    for whole, resumed in run_ranks(resumed_in_shards, 2, muon, str(tmp_path)):
        assert torch.equal(whole, resumed)


@pytest.mark.parametrize("make", [muon, lambda m: DecoupledAdamW(m.parameters(), lr=0.02)])
def test_it_resumes_from_one_file(make: Make, tmp_path: Any) -> None:
    settings: dict[str, Any] = {"optimizer": make, "save_folder": str(tmp_path)}
    settings |= {"save_interval": "2ba", "save_overwrite": True, "run_name": "run"}
    whole = trainer("mpt", [], **settings)
    whole.fit()
    resumed: Trainer = trainer("mpt", [], load_path=str(tmp_path / "ep1-ba4-rank0.pt"), **settings)
    resumed.fit()
    for name, value in whole.state.model.state_dict().items():
        assert torch.equal(resumed.state.model.state_dict()[name], value), name
    whole.close()
    resumed.close()


def test_its_norms_are_reported() -> None:
    model = Model()
    optimizer = DecoupledMuon(model, lr=0.01)
    steps(model, optimizer, 1)
    of_matrix = optimizer.report_per_parameter_metrics(model.up.weight, "up", {})
    assert set(of_matrix) == {"l2_norm/moment/up", "l2_norm/param/up", "l2_norm/grad/up"}
    assert "l2_norm/update/bias" in optimizer.report_per_parameter_metrics(
        model.up.bias, "bias", {}
    )


def test_cautious_decay_acts_where_the_update_goes_towards_zero() -> None:
    torch.manual_seed(0)
    start = torch.randn(50, dtype=torch.float64)
    cautious, bare = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimizers = (
        DecoupledAdamW([cautious], lr=0.1, weight_decay=0.05, cautious_weight_decay=True),
        DecoupledAdamW([bare], lr=0.1, weight_decay=0.0),
    )
    for number in range(4):
        for group in (group for each in optimizers for group in each.param_groups):
            group["lr"] = 0.1 / (number + 1)  # the decay follows the schedule
        before = cautious.detach().clone()
        bare.data = before.clone()
        gradient = torch.randn(50, dtype=torch.float64)
        gradient[:4] = 0.0  # rows of an embedding that do not occur decay, too
        for parameter, optimizer in zip((cautious, bare), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
        update = before - bare.detach()
        decay = 0.05 / (number + 1) * before * (update * before >= 0)
        torch.testing.assert_close(cautious.detach(), bare.detach() - decay)
        assert 0 < int((decay != 0).sum()) < 50
