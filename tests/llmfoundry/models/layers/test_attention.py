"""Attention's options against a plain reference: norms of heads, soft-caps, values of the first."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from llmfoundry.models.layers.attention import (
    AttentionContext,
    GroupedQueryAttention,
    KeyValue,
)
from llmfoundry.models.layers.masking import AttentionMasks
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig
from llmfoundry.models.mpt.transformers_mpt import why_not_transformers

B, S, E, H, K, D = 2, 7, 24, 4, 2, 6


def _context() -> AttentionContext:
    return AttentionContext(AttentionMasks(S, S, torch.device("cpu")))


def _layer(**kwargs: Any) -> GroupedQueryAttention:
    torch.manual_seed(0)
    layer = GroupedQueryAttention(E, H, K, norm_type="layernorm", **kwargs)
    for name, parameter in layer.named_parameters():
        if "_ln." in name:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    return layer


def _reference(
    layer: Any, x: torch.Tensor, softcap: float | None = None, first: Any = None, share: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output and the values, from the definitions."""
    q, k, v = layer.Wqkv(x).split([H * D, K * D, K * D], dim=-1)
    if layer.qk_ln:
        q = F.layer_norm(q, [H * D], layer.q_ln.weight, layer.q_ln.bias)
        k = F.layer_norm(k, [K * D], layer.k_ln.weight, layer.k_ln.bias)
    q, k, v = q.view(B, S, H, D), k.view(B, S, K, D), v.view(B, S, K, D)
    if layer.qk_gn:
        q = F.layer_norm(q, [D], layer.q_ln.weight, layer.q_ln.bias)
        k = F.layer_norm(k, [D], layer.k_ln.weight, layer.k_ln.bias)
    if first is not None:
        v = (1 - share) * v + share * first
    outputs = []
    for head in range(H):
        group = head // (H // K)
        scores = q[:, :, head] @ k[:, :, group].mT / math.sqrt(D)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        hidden = torch.ones(S, S, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        outputs.append(weights @ v[:, :, group])
    return layer.out_proj(torch.cat(outputs, dim=-1)), v


@pytest.mark.parametrize("softcap", [None, 0.7])
@pytest.mark.parametrize("norm", [{}, {"qk_ln": True}, {"qk_gn": True}])
def test_norms_of_queries_and_keys_and_softcaps(norm: dict[str, bool], softcap: Any) -> None:
    layer = _layer(**norm, attn_logit_softcapping=softcap)
    x = torch.randn(B, S, E, requires_grad=True)
    found = layer(x, _context())[0]
    expected = _reference(layer, x, softcap)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    slopes = (torch.autograd.grad(y.square().sum(), x)[0] for y in (found, expected))
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-6)


def test_values_are_mixed_with_those_of_the_first_layer() -> None:
    layer, x = _layer(value_residual=0.3), torch.randn(B, S, E)
    first = torch.randn(B, K, S, D)
    _, _, found = layer(x, _context(), prev_layer_key_value=KeyValue(first, first))
    out = layer(x, _context(), prev_layer_key_value=KeyValue(first, first))[0]
    expected, values = _reference(layer, x, first=first.transpose(1, 2), share=0.3)
    torch.testing.assert_close(found.values, values.transpose(1, 2))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    alone, _ = _reference(layer, x)
    torch.testing.assert_close(layer(x, _context())[0], alone, rtol=1e-5, atol=1e-6)


def _model(**attn_config: Any) -> MPTForCausalLM:
    torch.manual_seed(4)
    config = MPTConfig(
        d_model=24, n_heads=4, n_layers=3, max_seq_len=16, vocab_size=64, attn_config=attn_config
    )
    return MPTForCausalLM(config).eval()


def test_every_later_layer_mixes_and_the_cache_holds_the_mixture() -> None:
    kinds: dict[str, Any] = {"rope": True, "rope_impl": "hf"}
    plain, model = _model(**kinds), _model(**kinds, value_residual=0.5)
    assert model.state_dict().keys() == plain.state_dict().keys()
    tokens = torch.randint(1, 60, (2, 9))
    first: list[torch.Tensor] = []
    values: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for index, block in enumerate(model.transformer.blocks):

        def note(module: Any, args: Any, output: Any, index: int = index) -> None:
            own = module.Wqkv(args[0])[..., -24:].unflatten(-1, (4, 6)).transpose(1, 2)
            first[:] = first or [own]
            values[index] = own, output[2].values

        block.attn.register_forward_hook(note)
    logits = model(tokens).logits
    assert not torch.allclose(logits, plain(tokens).logits)
    for index, (own, used) in values.items():
        mixed = own if index == 0 else (own + first[0]) / 2
        torch.testing.assert_close(used, mixed)
    cache = None
    for start, end in ((0, 4), (4, 5), (5, 9)):
        out = model(tokens[:, start:end], past_key_values=cache, use_cache=True)
        cache = out.cache if "cache" in out else out.past_key_values
        torch.testing.assert_close(out.logits, logits[:, start:end], rtol=1e-4, atol=1e-5)
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    continued = [model.generate(tokens, use_cache=use, **settings) for use in (True, False)]
    assert torch.equal(*continued)


def test_a_share_of_nothing_is_off_and_others_are_refused() -> None:
    plain, off = _model(alibi=True), _model(alibi=True, value_residual=0.0)
    tokens = torch.randint(1, 60, (2, 9))
    assert torch.equal(plain(tokens).logits, off(tokens).logits)
    for share in (-0.1, 1.0):
        with pytest.raises(ValueError, match=f"value_residual={share}"):
            _model(value_residual=share)


def test_exported_configurations_carry_it(tmp_path: Any) -> None:
    model = _model(alibi=True, value_residual=0.25)
    model.save_pretrained(tmp_path)
    loaded = MPTForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.config.attn_config["value_residual"] == 0.25
    tokens = torch.randint(1, 60, (2, 9))
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)
    assert "attn_config.value_residual is on" in why_not_transformers(model.config)
