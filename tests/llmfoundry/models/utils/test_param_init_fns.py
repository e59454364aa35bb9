"""Initialisation by name and by module kind."""

import math
from typing import Any

import pytest
import torch

from llmfoundry.layers_registry import module_init_fns, param_init_fns
from llmfoundry.models.utils.meta_init_context import init_empty_weights, init_on_device
from llmfoundry.models.utils.param_init_fns import generic_param_init_fn_
from llmfoundry.utils.registry_utils import save_registry

N_LAYERS, WIDTH = 8, 256


def _init(name: str, module: torch.nn.Module, **kwargs: Any) -> torch.nn.Module:
    for param in module.parameters():
        torch.nn.init.constant_(param, 7.0)
    param_init_fns.get(name)(module=module, n_layers=N_LAYERS, d_model=WIDTH, **kwargs)
    return module


def _linear(is_residual: bool = False) -> torch.nn.Linear:
    linear = torch.nn.Linear(WIDTH, WIDTH)
    linear._is_residual = is_residual
    return linear


@pytest.mark.parametrize(
    ("name", "kwargs", "std"),
    [
        ("baseline_", {"init_std": 0.3}, 0.3),
        ("small_init_", {}, math.sqrt(2 / (5 * WIDTH))),
        ("neox_init_", {}, math.sqrt(2 / (5 * WIDTH))),
        ("kaiming_normal_", {"init_nonlinearity": "relu"}, math.sqrt(2 / WIDTH)),
        ("kaiming_uniform_", {"init_nonlinearity": "relu"}, math.sqrt(2 / WIDTH)),
        ("xavier_normal_", {"init_gain": 1.0}, math.sqrt(1 / WIDTH)),
        ("xavier_uniform_", {"init_gain": 1.0}, math.sqrt(1 / WIDTH)),
        ("xavier_normal_", {}, 0.0),
        ("default_", {}, math.sqrt(1 / (3 * WIDTH))),
    ],
)
def test_deviation(name: str, kwargs: dict[str, Any], std: float) -> None:
    linear = _init(name, _linear(), **kwargs)
    assert linear.weight.std().item() == pytest.approx(std, rel=0.05)
    if name != "default_":
        assert not linear.bias.any()


@pytest.mark.parametrize(
    ("value", "divisor"),
    [(True, math.sqrt(2 * N_LAYERS)), (False, 1.0), (3, 3.0), (2.5, 2.5), ("4", 4.0)],
)
def test_residual_projections_are_divided(value: Any, divisor: float) -> None:
    plain = _init("baseline_", _linear(), init_std=1.0, init_div_is_residual=value)
    residual = _init("baseline_", _linear(True), init_std=1.0, init_div_is_residual=value)
    ratio = plain.weight.std() / residual.weight.std()
    assert ratio.item() == pytest.approx(divisor, rel=0.02)


def test_residual_projections_may_begin_at_zero() -> None:
    settings = {"init_std": 1.0, "init_div_is_residual": math.inf}  # in YAML .inf
    assert not _init("baseline_", _linear(True), **settings).weight.any()
    assert _init("baseline_", _linear(), **settings).weight.all()


def test_neox_divides_by_its_own_number() -> None:
    residual = _init("neox_init_", _linear(True), init_div_is_residual=False)
    expected = math.sqrt(2 / (5 * WIDTH)) / (N_LAYERS / math.sqrt(10))
    assert residual.weight.std().item() == pytest.approx(expected, rel=0.05)


def test_bad_divisors_are_refused() -> None:
    for value in ("2.5", None, [1]):
        with pytest.raises(ValueError, match="init_div_is_residual"):
            _init("baseline_", _linear(), init_std=1.0, init_div_is_residual=value)


def test_parts_of_a_fused_weight_are_initialised_each_for_itself() -> None:
    linear = torch.nn.Linear(64, 3 * 256, bias=False)
    linear._fused = (0, [256, 512])
    _init("xavier_normal_", linear, init_gain=1.0)
    for part in linear.weight.split(256):
        assert part.std().item() == pytest.approx(math.sqrt(2 / (64 + 256)), rel=0.05)


def test_embeddings_and_norms() -> None:
    embedding = torch.nn.Embedding(500, 64, padding_idx=2)
    _init("baseline_", embedding, init_std=0.5)
    assert embedding.weight[3:].std().item() == pytest.approx(0.5, rel=0.05)
    assert not embedding.weight[2].any()
    _init("baseline_", embedding, init_std=0.5, emb_init_std=2.0)
    assert embedding.weight[3:].std().item() == pytest.approx(2.0, rel=0.05)
    _init("baseline_", embedding, init_std=0.5, emb_init_uniform_lim=[0.25, 0.5])
    assert 0.25 <= embedding.weight[3:].min() and embedding.weight[3:].max() <= 0.5
    _init("baseline_", embedding, init_std=0.5, emb_init_uniform_lim=0.1)
    assert embedding.weight.abs().max() <= 0.1
    with pytest.raises(ValueError, match="pair"):
        _init("baseline_", embedding, init_std=0.5, emb_init_uniform_lim=[1, 2, 3])
    for zero in ({"emb_init_std": 0}, {"emb_init_uniform_lim": 0}):
        with pytest.warns(UserWarning, match="embeddings become"):
            _init("baseline_", embedding, init_std=0.5, **zero)
    norm = _init("baseline_", torch.nn.LayerNorm(8), init_std=0.5)
    assert torch.equal(norm.weight, torch.ones(8)) and not norm.bias.any()


def test_torch_attention() -> None:
    attention = torch.nn.MultiheadAttention(64, 4)
    _init("baseline_", attention, init_std=0.5)
    assert attention.in_proj_weight.std().item() == pytest.approx(0.5, rel=0.05)
    assert not attention.in_proj_bias.any() and not attention.out_proj.bias.any()


def test_unknown_modules_are_refused_until_a_rule_knows_them() -> None:
    conv = torch.nn.Conv1d(2, 2, 1)
    init_ = torch.nn.init.zeros_
    with pytest.raises(NotImplementedError, match="Conv1d"):
        generic_param_init_fn_(conv, init_, n_layers=1)
    generic_param_init_fn_(torch.nn.ReLU(), init_, n_layers=1)
    with pytest.raises(ValueError, match="init_std"):
        _init("baseline_", _linear(), init_std=None)
    with save_registry():

        @module_init_fns.register("conv")
        def conv_init(module: torch.nn.Module, init_fn_: Any, **_: Any) -> bool:
            if isinstance(module, torch.nn.Conv1d):
                init_fn_(module.weight)
                return True
            return False

        generic_param_init_fn_(conv, init_, n_layers=1)
        assert not conv.weight.any()


def test_parameters_are_made_elsewhere() -> None:
    with init_empty_weights():
        norm = torch.nn.BatchNorm1d(4)
    assert norm.weight.is_meta and not norm.running_mean.is_meta
    with init_on_device("meta", include_buffers=True):
        norm = torch.nn.BatchNorm1d(4)
    assert norm.weight.is_meta and norm.running_mean.is_meta
    assert not torch.nn.Linear(2, 2).weight.is_meta
