"""ALiBi equals attention to which the bias is added by hand, in every model that it knows."""

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

from composer.algorithms import Alibi, NoMatchError
from composer.algorithms.alibi import apply_alibi
from composer.algorithms.alibi.attention_surgery_functions import policy_registry
from composer.algorithms.alibi.attention_surgery_functions.bias import alibi_slopes
from composer.algorithms.alibi.attention_surgery_functions.utils import (
    register_alibi,
    zero_and_freeze_expand_position_embeddings,
)
from composer.algorithms.warnings import NoEffectWarning
from composer.core.event import Event
from llmfoundry.models.mpt.cache import CACHE_FIELD
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from tests.composer.algorithms.surgery import Golden, apply_at, golden_fact

SIZES: dict[str, Any] = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
WIDE: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    **SIZES,
}


def gpt2(heads: int = 6, **kwargs: Any) -> GPT2LMHeadModel:
    config = GPT2Config(n_positions=16, n_embd=24, n_layer=2, n_head=heads, **SIZES, **kwargs)
    return GPT2LMHeadModel(config)


MODELS: dict[str, Any] = {
    "gpt2": gpt2,
    "bert": lambda **kwargs: BertForMaskedLM(BertConfig(**WIDE, **kwargs)),
    "roberta": lambda **kwargs: RobertaForMaskedLM(RobertaConfig(**WIDE, **kwargs)),
    "llama": lambda **kwargs: LlamaForCausalLM(
        LlamaConfig(**WIDE, num_key_value_heads=2, **kwargs)
    ),
    "mistral": lambda **kwargs: MistralForCausalLM(
        MistralConfig(**WIDE, num_key_value_heads=3, sliding_window=None, **kwargs)
    ),
}


def slope(head: int, n_heads: int = 6) -> float:
    """As the paper's own code has it, for powers of two and between them."""
    power = 2 ** int(math.log2(n_heads))
    if head < power:
        return (2 ** (-8 / power)) ** (head + 1)
    return (2 ** (-4 / power)) ** (2 * (head - power) + 1)


def by_hand(model: Any, ids: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """Adds the bias to the scores of eager attention, without any positions."""
    model = copy.deepcopy(model).eval()
    model.set_attn_implementation("eager")
    for module in model.modules():
        for name in ("wpe", "position_embeddings"):
            if hasattr(module, name):
                getattr(module, name).weight.data.zero_()
    length = ids.shape[1]
    mask = torch.empty(1, 6, length, length)
    for head in range(6):
        for query in range(length):
            for key in range(length):
                seen = key <= query or not is_causal
                bias = -slope(head) * abs(query - key)
                mask[0, head, query, key] = bias if seen else torch.finfo(torch.float32).min
    # A rotation by position 0 is none.
    return model(ids, attention_mask=mask, position_ids=torch.zeros_like(ids)).logits


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_bias_added_by_hand(name, attention):
    torch.manual_seed(0)
    model = MODELS[name](attn_implementation=attention).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)  # so that attention looks here and there
    ids = torch.randint(2, 64, (2, 12))
    is_causal = "bert" not in name
    expected = by_hand(model, ids, is_causal)
    assert (model(ids).logits - expected).abs().max() > 0.01
    apply_alibi(model, 40)
    torch.testing.assert_close(model(ids).logits, expected, atol=2e-5, rtol=1e-4)

    # Padding is not looked at, wherever it is.
    for padded, kept in ((slice(None, 3), slice(3, None)), (slice(-3, None), slice(None, -3))):
        mask = torch.ones_like(ids)
        mask[:, padded] = 0
        out = model(ids, attention_mask=mask).logits[:, kept]
        torch.testing.assert_close(out, model(ids[:, kept]).logits, atol=2e-5, rtol=1e-4)
    assert model(torch.randint(2, 64, (1, 40))).logits.isfinite().all()


def test_slopes():
    for n_heads in (1, 2, 3, 4, 6, 8, 12, 16):
        expected = [slope(head, n_heads) for head in range(n_heads)]
        assert alibi_slopes(n_heads).tolist() == pytest.approx(expected)
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]


@pytest.mark.parametrize("heads", [4, 6])
def test_positions_are_zero_as_recorded(heads):
    golden = Golden(f"alibi_gpt2_{heads}h")
    model = GPT2LMHeadModel(
        GPT2Config(n_positions=32, n_embd=24, n_layer=2, n_head=heads, **SIZES)
    ).eval()
    model.load_state_dict(golden.weights(), strict=False)
    keys = list(model.state_dict())
    torch.testing.assert_close(
        model(golden["input_ids"]).logits, golden["logits_before"], atol=1e-5, rtol=0
    )
    apply_alibi(model, 64)
    assert list(model.state_dict()) == keys
    wpe = model.transformer.wpe.weight
    assert wpe.shape == (64, 24)
    assert float(wpe.abs().max()) == golden_fact(f"alibi_gpt2_{heads}h_wpe_max_abs") == 0
    assert wpe.requires_grad == golden_fact(f"alibi_gpt2_{heads}h_requires_grad_wpe") is False
    logits = model(golden["input_ids"]).logits
    assert (logits - golden["logits_after"]).abs().max() > 0.01
    # In the record the bias was lost: its transformers no longer asked the method that added it.
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(
        model(golden["input_ids"]).logits, golden["logits_after"], atol=1e-5, rtol=0
    )


def test_generation_with_a_cache():
    torch.manual_seed(1)
    for name in ("gpt2", "llama"):
        model = MODELS[name]().eval()
        apply_alibi(model, 64)
        ids = torch.randint(2, 64, (2, 10))
        mask = torch.ones_like(ids)
        mask[0, :3] = 0
        whole = model(ids, attention_mask=mask).logits
        first = model(ids[:, :6], attention_mask=mask[:, :6], use_cache=True)
        past = {CACHE_FIELD: getattr(first, CACHE_FIELD)}
        rest = model(ids[:, 6:], attention_mask=mask, **past).logits
        torch.testing.assert_close(rest[1], whole[1, 6:], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(rest[0], whole[0, 6:], atol=1e-5, rtol=1e-4)
        made = model.generate(ids, max_new_tokens=8, do_sample=False, min_new_tokens=8)
        for end in range(10, 18):
            assert torch.equal(model(made[:, :end]).logits[:, -1].argmax(-1), made[:, end])


def test_mixed_precision_and_compilation():
    model = gpt2().eval()
    apply_alibi(model, 64)
    ids = torch.randint(2, 64, (2, 16))
    expected = model(ids).logits
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(ids).logits, expected, atol=1e-5, rtol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(ids).logits.float(), expected, atol=0.05, rtol=0.05)
    model.train()(ids, labels=ids).loss.backward()
    assert model.transformer.wte.weight.grad is not None


def test_mpt_becomes_one_that_was_built_with_alibi():
    def mpt(alibi: bool) -> MPTForCausalLM:
        torch.manual_seed(3)
        config = MPTConfig(
            d_model=24,
            n_heads=6,
            n_layers=2,
            expansion_ratio=2,
            max_seq_len=32 if alibi else 16,
            vocab_size=64,
            attn_config={"alibi": alibi, "attn_impl": "torch"},
        )
        return MPTForCausalLM(config).eval()

    model, expected = mpt(False), mpt(True)
    optimizer = torch.optim.AdamW(model.parameters())
    apply_at(Alibi(32), model, optimizers=[optimizer])
    assert set(model.state_dict()) == set(expected.state_dict())
    assert set(optimizer.param_groups[0]["params"]) == set(model.parameters())
    model.load_state_dict(expected.state_dict())
    ids = torch.randint(2, 64, (2, 32))
    torch.testing.assert_close(model(ids).logits, expected(ids).logits)
    assert model.config.attn_config["alibi"] and model.config.max_seq_len == 32
    rotary = MPTConfig(
        d_model=24,
        n_heads=6,
        n_layers=1,
        max_seq_len=16,
        vocab_size=64,
        attn_config={"rope": True, "attn_impl": "torch"},
    )
    with pytest.raises(ValueError, match="rope"):
        apply_alibi(MPTForCausalLM(rotary), 32)


@pytest.mark.parametrize("name", ["gpt2", "bert", "roberta", "llama"])
def test_optimizer_and_positions(name):
    model = MODELS[name]()
    table = [p for n, p in model.named_parameters() if "wpe" in n or "position_emb" in n]
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if p is not each]} for each in table]
        + [{"params": table}]
        if table
        else model.parameters()
    )
    apply_at(Alibi(40), model, optimizers=[optimizer])
    held = {p for group in optimizer.param_groups for p in group["params"]}
    assert held == {p for p in model.parameters() if p.requires_grad}
    assert model.config.max_position_embeddings == 40


def test_the_root_itself():
    model = gpt2().transformer
    apply_alibi(model, 40)
    assert model.wpe.weight.shape == (40, 24)


def test_models_that_it_does_not_go_with():
    with pytest.raises(NoMatchError, match="GPT-2, BERT"):
        apply_alibi(nn.Linear(2, 2), 8)
    with pytest.warns(NoEffectWarning):
        apply_at(Alibi(8, on_no_match="warn"), nn.Linear(2, 2))
    with pytest.raises(NotImplementedError, match="cross-attention"):
        apply_alibi(gpt2(add_cross_attention=True), 8)
    model = gpt2()
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(NotImplementedError, match="attn_implementation='sdpa'"):
        apply_alibi(model, 8)
    model = gpt2()
    apply_alibi(model, 16)
    with pytest.raises(ValueError, match="mask of padding"):
        model(torch.ones(1, 4).long(), attention_mask=torch.zeros(1, 1, 4, 4))


def test_registry():
    class Own(nn.Module):
        pass

    register = policy_registry.register

    def good(module: nn.Module, module_index: int, max_sequence_length: int) -> nn.Module:
        module.seen = (module_index, max_sequence_length)  # type: ignore[assignment]
        return module

    with pytest.raises(ValueError, match="at least one"):
        register()
    with pytest.raises(ValueError, match="2 parameters"):
        register(Own)(lambda module, index: None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="annotated as Module"):
        register(Own)(lambda module, index, max_sequence_length: None)

    def misnamed(module: nn.Module, index: int, length: int) -> nn.Module:
        return module

    with pytest.raises(NameError, match="max_sequence_length"):
        register(Own)(misnamed)
    with pytest.raises(TypeError, match="not a class"):
        register(int)(good)  # type: ignore[arg-type]
    assert register(Own)(good) is good
    with pytest.raises(ValueError, match="already"):
        register(Own)(good)
    model = nn.Sequential(Own(), Own())
    apply_alibi(model, 9)
    assert [layer.seen for layer in model] == [(0, 9), (1, 9)]
    policy_registry.pop(Own)


def test_what_a_function_of_ones_own_needs():
    attention = nn.Linear(2, 2)
    register_alibi(attention, n_heads=2, max_token_length=3, causal=True)
    slopes = alibi_slopes(2)
    assert torch.equal(attention.alibi, slopes[:, None, None] * torch.arange(3))
    register_alibi(attention, n_heads=2, max_token_length=3, causal=False)
    distance = torch.tensor([[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    assert torch.equal(attention.alibi, -slopes[None, :, None, None] * distance)

    model = nn.ModuleDict({"inner": nn.ModuleDict({"positions": nn.Embedding(4, 2)})})
    zero_and_freeze_expand_position_embeddings(model, 6, "inner.positions")
    table = model["inner"]["positions"]
    assert table.weight.shape == (6, 2) and not table.weight.requires_grad
    assert not table(torch.tensor([5])).any()


def test_batches_are_cut():
    algorithm = Alibi(64)
    assert repr(algorithm) == "Alibi(max_sequence_length=64,train_sequence_length_scaling=0.25)"
    assert not Alibi(64, 1).match(Event.AFTER_DATALOADER, None)  # type: ignore[arg-type]
    rows = torch.arange(32).view(2, 16)
    batch = {"input_ids": rows, "labels": rows, "name": "kept", "total_tokens": [16, 16]}
    model = gpt2()
    apply_at(algorithm, model)
    assert not algorithm.match(Event.INIT, SimpleNamespace())  # type: ignore[arg-type]
    state, _ = apply_at(algorithm, model, Event.AFTER_DATALOADER, batch=batch)
    assert state.batch["input_ids"].tolist() == rows.view(8, 4).tolist()
    assert state.batch["name"] == "kept" and batch["input_ids"] is rows
    assert "total_tokens" not in state.batch  # of rows that are no more
    for wrong, message in (
        ((rows, rows), "tuple"),
        ({"input_ids": rows[:, :15]}, "cannot be cut"),
        ({"labels": rows[0]}, "labels"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            apply_at(algorithm, model, Event.AFTER_DATALOADER, batch=wrong)
    with pytest.raises(ValueError, match="scaling"):
        Alibi(64, 0)
    with pytest.raises(ValueError, match="max_sequence_length"):
        Alibi(0)
