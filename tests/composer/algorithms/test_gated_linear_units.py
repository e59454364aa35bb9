"""Gated feed-forward networks equal those of the last upstream releases."""

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2Model

from composer.algorithms import GatedLinearUnits, NoMatchError
from composer.algorithms.gated_linear_units import BERTGatedFFOutput, apply_gated_linear_units
from composer.models import HuggingFaceModel
from tests.composer.algorithms.surgery import Golden, apply_at, golden_fact


def bert(layers: int = 1) -> BertForMaskedLM:
    config = BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=16,
    )
    return BertForMaskedLM(config)


def test_model_equals_the_record():
    golden = Golden("glu_bert")
    model = bert().eval()
    before = set(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    apply_gated_linear_units(model, optimizer)
    after = model.state_dict()
    assert sorted(before - set(after)) == sorted(golden_fact("glu_removed_keys"))
    added = {name: list(after[name].shape) for name in set(after) - before}
    assert added == golden_fact("glu_added_keys")
    assert set(optimizer.param_groups[0]["params"]) == set(model.parameters())
    model.load_state_dict(golden.weights())
    logits = model(golden["input_ids"]).logits
    torch.testing.assert_close(logits, golden["logits"], atol=1e-5, rtol=0)


def test_layer():
    layer = BERTGatedFFOutput(4, 6, 0.5, torch.tanh, 1e-5, gated_layer_bias=True)
    assert layer.gated_layer.bias is not None and layer.non_gated_layer.bias is None
    x, residual = torch.randn(3, 4), torch.randn(3, 4)
    hidden = torch.tanh(layer.gated_layer(x)) * layer.non_gated_layer(x)
    expected = layer.layernorm(layer.wo(hidden) + residual)
    torch.testing.assert_close(layer.eval()(x, residual), expected)
    assert not torch.equal(layer.train()(x, residual), expected)


def test_activation():
    model = bert(2)
    apply_gated_linear_units(model, act_fn=torch.tanh)
    assert model.bert.encoder.layer[1].output.act is torch.tanh
    model = bert(2)
    model.bert.encoder.layer[0].intermediate.intermediate_act_fn = nn.ReLU()
    with pytest.raises(ValueError, match="GELUActivation, ReLU"):
        apply_gated_linear_units(model)


def test_algorithm():
    model = bert().to(torch.bfloat16)
    algorithm = GatedLinearUnits(non_gated_layer_bias=True)
    apply_at(algorithm, HuggingFaceModel(model))
    output = model.bert.encoder.layer[0].output
    assert isinstance(output, BERTGatedFFOutput) and output.non_gated_layer.bias is not None
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    apply_at(algorithm, model)  # what is gated already is left alone
    assert model.bert.encoder.layer[0].output is output
    with pytest.raises(NoMatchError, match="BertIntermediate"):
        apply_at(algorithm, bert(layers=0))
    text = "GatedLinearUnits(act_fn={},gated_layer_bias=False,non_gated_layer_bias=False)"
    assert repr(GatedLinearUnits()) == text.format(None)
    assert repr(GatedLinearUnits(torch.tanh)) == text.format("act_fn")
    gpt2 = GPT2Model(
        GPT2Config(vocab_size=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    with pytest.raises(TypeError, match="GPT2Model.*mptglu"):
        apply_at(algorithm, gpt2)
