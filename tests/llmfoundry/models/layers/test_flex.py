"""FlexAttention gives what SDPA does: padding, documents, ALiBi, windows, softcaps, caches."""

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from llmfoundry.models.layers.flex import (
    attend_by_functions,
    block_mask_of,
    score_of,
    seen_by,
)
from llmfoundry.models.layers.masking import AttentionMasks
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig

KINDS: dict[str, dict[str, Any]] = {
    "learned positions": {},
    "alibi of 6 heads": {"alibi": True},
    "alibi and window": {"alibi": True, "sliding_window_size": 3},
    "rope, softcap and groups": {
        "rope": True,
        "rope_impl": "hf",
        "attn_logit_softcapping": 0.05,
        "attn_type": "grouped_query_attention",
        "kv_n_heads": 2,
    },
}
N_TOKENS = 11


def _models(kind: dict[str, Any], **attn_config: Any) -> list[MPTForCausalLM]:
    """Twins that differ in nothing but how attention is computed."""
    models = []
    for attn_impl in ("torch", "flex"):
        torch.manual_seed(0)
        settings = {**kind, **attn_config, "attn_impl": attn_impl}
        sizes = {"d_model": 48, "n_heads": 6, "n_layers": 2, "max_seq_len": 40, "vocab_size": 97}
        models.append(MPTForCausalLM(MPTConfig(**sizes, attn_config=settings)).eval())
    return models


def _inputs(case: str) -> dict[str, torch.Tensor]:
    tokens = torch.randint(1, 97, (2, N_TOKENS), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": tokens}
    if case == "left padding":
        inputs["attention_mask"] = torch.ones_like(tokens)
        inputs["attention_mask"][0, :4] = 0
    if case == "documents":
        inputs["sequence_id"] = torch.tensor([[0] * 3 + [1] * 8, [0] * 6 + [1] * 4 + [2]])
    return inputs


@pytest.mark.parametrize("case", ["plain", "left padding", "documents"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_sdpa(kind: str, case: str) -> None:
    plain, flex = _models(KINDS[kind], attn_uses_sequence_id=case == "documents")
    inputs = _inputs(case)
    is_token = inputs.get("attention_mask", torch.ones(2, N_TOKENS)).bool()
    labels = inputs["input_ids"].masked_fill(~is_token, -100)
    labels[:, 1:][~is_token[:, :-1]] = -100  # what padding predicts is nobody's
    outputs = [model(**inputs, labels=labels) for model in (plain, flex)]
    torch.testing.assert_close(
        outputs[1].logits[is_token], outputs[0].logits[is_token], rtol=1e-4, atol=1e-5
    )
    for output in outputs:
        output.loss.backward()
    theirs = dict(plain.named_parameters())
    for name, parameter in flex.named_parameters():
        expected = theirs[name].grad
        assert expected is not None
        limit = 1e-5 * float(expected.abs().max())
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=limit)


@pytest.mark.parametrize("kind", KINDS)
def test_generation_with_a_cache_is_that_of_sdpa(kind: str) -> None:
    plain, flex = _models(KINDS[kind])
    inputs = _inputs("left padding")
    settings: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    texts = [model.generate(**inputs, **settings, pad_token_id=0) for model in (plain, flex)]
    assert torch.equal(texts[0], texts[1])


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("case", ["plain", "left padding", "documents", "cached"])
def test_the_kernel_computes_what_its_functions_say(case: str) -> None:
    """Torch's own FlexAttention, which on a CPU has a forward, against the functions applied."""
    n_queries, window, softcap = (1 if case == "cached" else N_TOKENS), 6, 1.5
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(2, 6, n_queries, 16, generator=generator)
    k, v = (torch.randn(2, 2, N_TOKENS, 16, generator=generator) for _ in range(2))
    inputs = _inputs(case)
    mask = inputs.get("attention_mask")
    masks = AttentionMasks(
        n_queries,
        N_TOKENS,
        q.device,
        None if mask is None else mask.bool(),
        inputs.get("sequence_id"),
        torch.tensor([0.5, 0.25, 0.125, 1.0, 2.0, 0.1]),
    )
    score, sees = score_of(masks, softcap), seen_by(masks, window)
    kernel = flex_attention(q, k, v, score, block_mask_of(masks, sees), scale=0.3, enable_gqa=True)
    twin = attend_by_functions(q, k, v, score, sees, 0.3)
    torch.testing.assert_close(twin, kernel, rtol=1e-5, atol=1e-5)


def test_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match="flex has no dropout, but attn_pdrop is 0.1"):
        MPTConfig(attn_config={"attn_impl": "flex", "attn_pdrop": 0.1})
