"""Factors equal those of the last upstream releases, and keep what layers compute."""

import pytest
import torch
from torch import nn

from composer.algorithms import Factorize, NoMatchError
from composer.algorithms.factorize import (
    FactorizedConv2d,
    FactorizedLinear,
    apply_factorization,
    factorize_conv2d,
    factorize_matrix,
    factorizing_could_speedup,
)
from tests.composer.algorithms.surgery import Golden, apply_at, golden_fact


@pytest.mark.parametrize("rank", [3, 0.5])
def test_matrix_equals_the_record(rank):
    golden = Golden(f"factorize_r{rank}")
    X, W, bias = golden["X"], golden["W"], golden["bias"]
    found = factorize_matrix(X, X @ W, W, bias=bias, rank=rank)
    assert found.rank == int(golden["rank"])
    recon = X @ found.Wa @ found.Wb + found.bias
    torch.testing.assert_close(recon, golden["recon"], atol=1e-5, rtol=1e-5)
    # The record took the bias for an error; without one both agree.
    error = (golden["recon"] - X @ W).square().mean() / (X @ W).var()
    assert float(error) == pytest.approx(float(golden["nmse"]), abs=1e-5)
    error = (golden["recon"] - bias - X @ W).square().mean() / (X @ W).var()
    assert found.nmse == pytest.approx(float(error), abs=1e-5)


def test_speedup_equals_the_record():
    for n_in, n_out, latent, expected in golden_fact("could_speedup"):
        assert factorizing_could_speedup(nn.Linear(n_in, n_out), latent) is expected
    assert factorizing_could_speedup(nn.Conv2d(16, 16, 3), 14)
    assert not factorizing_could_speedup(nn.Conv2d(16, 16, 3), 15)
    assert not factorizing_could_speedup(nn.ReLU(), 1)


def test_model_equals_the_record():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4), nn.Conv2d(16, 16, 3))
    apply_factorization(model, min_features=16, min_channels=16)
    assert repr(model) == golden_fact("factorize_module")
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    assert shapes == golden_fact("factorize_keys")


@pytest.mark.parametrize("stride", [1, 2])
def test_conv_of_low_rank_is_found_exactly(stride):
    torch.manual_seed(0)
    x = torch.randn(4, 6, 8, 8)
    inner, outer = nn.Conv2d(6, 2, 3, stride, 1), nn.Conv2d(2, 8, 1)
    weight = torch.einsum("ol,lijk->oijk", outer.weight[:, :, 0, 0], inner.weight)
    bias = outer.bias + outer.weight[:, :, 0, 0] @ inner.bias
    found = factorize_conv2d(x, weight, rank=2, biasA=bias, stride=stride, padding=1)
    hidden = nn.functional.conv2d(x, found.Wa, stride=stride, padding=1)
    torch.testing.assert_close(
        nn.functional.conv2d(hidden, found.Wb, found.bias), outer(inner(x)), atol=1e-4, rtol=1e-4
    )
    again = factorize_conv2d(
        x, inner.weight, outer.weight, 2, inner.bias, outer.bias, stride=stride, padding=1
    )
    assert again.nmse < 1e-6
    torch.testing.assert_close(again.bias, bias, atol=1e-4, rtol=1e-4)
    with pytest.raises(NotImplementedError, match="groups"):
        factorize_conv2d(x, weight, groups=2)
    with pytest.raises(RuntimeError, match="biasB"):
        factorize_conv2d(x, weight, biasB=bias)


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (FactorizedLinear(16, 12, latent_features=6), torch.randn(40, 3, 16)),
        (FactorizedConv2d(8, 8, 3, latent_channels=6, padding=1), torch.randn(4, 8, 9, 9)),
    ],
)
def test_set_rank_keeps_most_of_the_output(layer, x):
    before = layer(x).detach()
    layer.set_rank(x, 6)  # what it is already: nothing changes
    assert torch.equal(layer(x), before)
    assert layer.should_factorize(5) and not layer.should_factorize(6)
    layer.set_rank(x, 5)
    assert layer.latent_size == 5
    assert layer.module0.weight.shape[0] == layer.module1.weight.shape[1] == 5
    error = (layer(x) - before).square().mean() / before.var()
    assert 0 < error < 0.2
    with pytest.raises(ValueError, match="higher"):
        layer.set_rank(x, 6)
    layer.reset_parameters()
    assert (layer(x) - before).square().mean() / before.var() > 0.2


def test_layers_that_would_be_slower():
    with pytest.raises(ValueError, match="at most 7"):
        FactorizedLinear(16, 16, latent_features=8)
    with pytest.raises(ValueError, match="slower"):
        FactorizedConv2d(16, 16, 3, latent_channels=15)
    with pytest.raises(NotImplementedError, match="groups"):
        FactorizedConv2d(16, 16, 3, groups=2)
    conv = nn.Conv2d(16, 12, 3, stride=2, padding=1, padding_mode="reflect", bias=False).double()
    made = FactorizedConv2d.from_conv2d(conv, latent_channels=0.25)
    x = torch.randn(2, 16, 8, 8, dtype=torch.double)
    assert made(x).shape == conv(x).shape
    assert made.latent_channels == 3 and made.module1.bias is None
    assert made.module0.padding_mode == "reflect"


def test_language_models():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=64, n_positions=8, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters())
    algorithm = Factorize(min_features=32, latent_features=4)
    _, logger = apply_at(algorithm, model, optimizers=[optimizer])
    # The two of attention and of the MLP; the head shares its weight with the embedding.
    assert logger.hparams["factorize/num_linear_replacements"] == 4
    assert isinstance(model.transformer.h[0].attn.c_attn, FactorizedLinear)
    assert model.lm_head.weight is model.transformer.wte.weight
    assert set(optimizer.param_groups[0]["params"]) == set(model.parameters())
    assert model(torch.randint(64, (2, 8))).logits.shape == (2, 8, 64)


def test_torch_attention_keeps_the_layer_that_it_only_reads():
    model = nn.Sequential(nn.TransformerEncoderLayer(32, 2, 64, batch_first=True))
    apply_factorization(model, min_features=32)
    assert isinstance(model[0].linear1, FactorizedLinear)
    assert model.train()(torch.randn(2, 4, 32)).shape == (2, 4, 32)


def test_algorithm():
    expected = (
        "Factorize(factorize_convs=True,factorize_linears=True,min_channels=256,"
        "latent_channels=0.25,min_features=256,latent_features=128)"
    )
    assert repr(Factorize()) == expected
    with pytest.raises(NoMatchError, match="min_features=256"):
        apply_at(Factorize(), nn.Linear(8, 8))
    with pytest.raises(ValueError, match="both False"):
        Factorize(factorize_convs=False, factorize_linears=False)
    _, logger = apply_at(
        Factorize(factorize_linears=False, min_channels=8),
        nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3, groups=2), nn.Linear(512, 512)),
    )
    assert logger.hparams == {"factorize/num_conv2d_replacements": 1}


def test_sizes_and_settings_of_the_layers():
    conv = nn.Conv2d(8, 12, 3, stride=2, padding=1, dilation=2, bias=False)
    layer = FactorizedConv2d.from_conv2d(conv, 0, latent_channels=3)
    assert (layer.in_channels, layer.out_channels, layer.latent_channels) == (8, 12, 3)
    assert layer(torch.rand(1, 8, 9, 9)).shape == conv(torch.rand(1, 8, 9, 9)).shape
    assert layer.module1.bias is None
    assert FactorizedConv2d.from_conv2d(conv, bias=True).module1.bias is not None
    largest = FactorizedConv2d.max_allowed_latent_features(8, 12, 3)
    assert factorizing_could_speedup(conv, largest)
    assert not factorizing_could_speedup(conv, largest + 1)
    with pytest.raises(NotImplementedError, match="groups"):
        FactorizedConv2d.from_conv2d(nn.Conv2d(8, 8, 3, groups=2))

    linear = nn.Linear(8, 12, bias=False, dtype=torch.float64)
    layer = FactorizedLinear.from_linear(linear, latent_features=2)
    assert (layer.in_features, layer.out_features, layer.latent_features) == (8, 12, 2)
    assert layer.module0.weight.dtype is torch.float64 and layer.module1.bias is None
    largest = FactorizedLinear.max_allowed_latent_channels(8, 12)
    assert factorizing_could_speedup(linear, largest)
    assert not factorizing_could_speedup(linear, largest + 1)
