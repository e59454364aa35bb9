"""Upstream's flash-attention function, against the plain one and against documents on their own."""

from itertools import product
from typing import Any

import pytest
import torch

from llmfoundry.models.layers.alibi import build_alibi_bias, gen_slopes
from llmfoundry.models.layers.attention import (
    flash_attn_fn,
    scaled_multihead_dot_product_attention,
)
from llmfoundry.models.mpt.modeling_mpt import (
    gen_attention_mask_in_length,
    gen_flash_attn_padding_info,
)

B, S, H, K, D = 2, 8, 6, 2, 8
CPU = torch.device("cpu")


def _inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randn(B, S, heads * D, generator=generator, requires_grad=True) for heads in (H, K, K)
    ]


def _info(mask: torch.Tensor | None = None, counts: torch.Tensor | None = None) -> dict[str, Any]:
    return gen_flash_attn_padding_info(B, S, 0, CPU, counts, mask)


@pytest.mark.parametrize(
    ("causal", "alibi", "padding", "window", "softcap"),
    list(product([True, False], [True, False], ["none", "left", "right"], [-1, 3], [None, 0.8])),
)
def test_it_is_the_plain_function(
    causal: bool, alibi: bool, padding: str, window: int, softcap: float | None
) -> None:
    inputs, mask = _inputs(), torch.ones(B, S, dtype=torch.bool)
    if padding != "none":
        mask[1, slice(0, 3) if padding == "left" else slice(5, 8)] = False
    shared: dict[str, Any] = {
        "n_heads": H,
        "kv_n_heads": K,
        "is_causal": causal,
        "sliding_window_size": window,
        "attn_logit_softcapping": softcap,
    }
    found, weights, past = flash_attn_fn(
        *inputs,
        **shared,
        alibi_slopes=gen_slopes(H, return_1d=True) if alibi else None,
        flash_attn_padding_info=_info(mask),
    )
    assert weights is None and past is None and not found[~mask].any()
    bias = build_alibi_bias(H, S, full=True) if alibi else None
    expected, _, _ = scaled_multihead_dot_product_attention(
        *inputs, **shared, attn_bias=bias, key_padding_mask=mask if padding != "none" else None
    )
    torch.testing.assert_close(found[mask], expected[mask], atol=1e-5, rtol=1e-4)
    slopes = [torch.autograd.grad(y[mask].square().sum(), inputs) for y in (found, expected)]
    torch.testing.assert_close(*slopes, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("causal", "alibi"), list(product([True, False], repeat=2)))
def test_documents_are_attended_as_if_alone(causal: bool, alibi: bool) -> None:
    (query, key, value), shared = _inputs(), {"n_heads": H, "kv_n_heads": K, "is_causal": causal}
    slopes = gen_slopes(H, return_1d=True) if alibi else None
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2], [1, 1, 3, 3, 3, -1, -1, -1]])
    counts = gen_attention_mask_in_length(ids, S, True, "flash", ids >= 0)
    assert counts is not None
    assert counts.tolist() == [[3, 4, 1, *[0] * 5], [0, 2, 0, 3, *[0] * 4]]
    info = _info(counts=counts)
    assert info["cu_seqlens_q"].tolist() == [0, 3, 7, 8, 10, 13] and info["max_seqlen_k"] == 4
    out = flash_attn_fn(
        query, key, value, **shared, alibi_slopes=slopes, flash_attn_padding_info=info
    )[0]
    for row, start, end in ((0, 0, 3), (0, 3, 7), (0, 7, 8), (1, 0, 2), (1, 2, 5)):
        part = [x[row : row + 1, start:end] for x in (query, key, value)]
        alone = flash_attn_fn(
            *part,
            **shared,
            alibi_slopes=slopes,
            flash_attn_padding_info=gen_flash_attn_padding_info(1, end - start, 0, CPU),
        )[0]
        torch.testing.assert_close(out[row : row + 1, start:end], alone, atol=1e-6, rtol=1e-5)
    assert not out[1, 5:].any()


def test_decoding_goes_on_from_a_cache() -> None:
    (query, key, value), past = _inputs(), ()
    shared: dict[str, Any] = {"n_heads": H, "kv_n_heads": K, "is_causal": True}
    mask = torch.ones(B, S, dtype=torch.bool)
    mask[1, :2] = False
    whole = flash_attn_fn(query, key, value, **shared, flash_attn_padding_info=_info(mask))[0]
    steps = []
    for step in range(S):
        now = slice(step, step + 1)
        info = gen_flash_attn_padding_info(B, 1, step, CPU, None, mask[:, : step + 1])
        out, _, past = flash_attn_fn(
            query[:, now], key[:, now], value[:, now], **shared,
            past_key_value=past, flash_attn_padding_info=info,
        )  # fmt: skip
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, atol=1e-6, rtol=1e-5)
    assert past[0].shape == (B, S, K * D)


def test_what_it_does_not_take() -> None:
    inputs, shared = _inputs(), {"n_heads": H, "kv_n_heads": K}
    mask = torch.ones(B, S, dtype=torch.bool)
    with pytest.raises(ValueError, match="key_padding_mask"):
        flash_attn_fn(*inputs, **shared, key_padding_mask=mask, flash_attn_padding_info=_info())
    with pytest.raises(ValueError, match="flash_attn_padding_info is required"):
        flash_attn_fn(*inputs, **shared)
    with pytest.raises(NotImplementedError, match="attn_bias"):
        bias = torch.zeros(1, 1, S, S)
        flash_attn_fn(*inputs, **shared, attn_bias=bias, flash_attn_padding_info=_info())
    with pytest.raises(NotImplementedError, match="one query or as many as keys"):
        past = (inputs[1], inputs[2])
        flash_attn_fn(*inputs, **shared, past_key_value=past, flash_attn_padding_info=_info())
    ids = torch.zeros(B, S, dtype=torch.long)
    with pytest.raises(ValueError, match="S is 9"):
        gen_attention_mask_in_length(ids, S + 1, True, "flash", None)
    with pytest.raises(NotImplementedError, match="pad on the right"):
        mask[0, 0] = False
        gen_attention_mask_in_length(ids, S, True, "flash", mask)
    for unasked in ((None, True, "flash"), (ids, False, "flash"), (ids, True, "torch")):
        assert gen_attention_mask_in_length(unasked[0], S, *unasked[1:], None) is None
