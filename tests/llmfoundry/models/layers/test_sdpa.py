"""The attention function in its registered form and in the model's, against plain mathematics."""

import math
from itertools import product

import pytest
import torch

from llmfoundry.layers_registry import attention_implementations
from llmfoundry.models.layers.alibi import gen_slopes
from llmfoundry.models.layers.masking import AttentionMasks, apply_sequence_id, drop_trivial_mask
from llmfoundry.models.layers.sdpa import attend, scaled_multihead_dot_product_attention

B, S, H, K, D = 2, 9, 6, 2, 8


def _by_hand(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    allowed: torch.Tensor,
    slopes: torch.Tensor | None,
) -> torch.Tensor:
    k, v = (x.repeat_interleave(H // K, dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    if slopes is not None:
        key, query = torch.arange(k.size(2)), torch.arange(k.size(2))[-q.size(2) :]
        scores = scores - slopes.view(1, -1, 1, 1) * (query[:, None] - key[None]).abs()
    return scores.masked_fill(~allowed, -1e30).softmax(-1) @ v


@pytest.mark.parametrize(
    ("alibi", "padded", "documents", "window", "queries"),
    [
        case
        for case in product([False, True], [False, True], [False, True], [-1, 3], [S, 4, 1])
        if not (case[2] and case[4] != S)
    ],
)
def test_every_mask(alibi: bool, padded: bool, documents: bool, window: int, queries: int) -> None:
    q, k, v = (torch.randn(B, n, S, D, requires_grad=True) for n in (H, K, K))
    key, query = torch.arange(S), torch.arange(S)[S - queries :]
    distance = query[:, None] - key[None]
    allowed = (distance >= 0)[None, None].expand(B, 1, queries, S)
    if window != -1:
        allowed = allowed & (distance <= window)
    key_mask = torch.ones(B, S, dtype=torch.bool)
    if padded:
        key_mask[1, :2] = False
        allowed = allowed & key_mask[:, None, None]
    ids = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2], [0, 0, 1, 1, 1, 1, 1, 1, 2]])
    if documents:
        allowed = allowed & (ids[:, None, :, None] == ids[:, None, None])
    slopes = gen_slopes(H, return_1d=True) if alibi else None
    masks = AttentionMasks(
        queries, S, q.device, key_mask if padded else None, ids if documents else None, slopes
    )
    q_part = q[:, :, S - queries :]
    expected = _by_hand(q_part, k, v, allowed, slopes)
    real = key_mask[:, S - queries :]
    gradients = torch.autograd.grad(expected.transpose(1, 2)[real].square().sum(), (q, k, v))
    for needs_weights in (False, True):
        out, weights = attend(
            q_part, k, v, masks, D**-0.5, window=window, needs_weights=needs_weights
        )
        assert (weights is not None) == needs_weights
        torch.testing.assert_close(
            out.transpose(1, 2)[real], expected.transpose(1, 2)[real], atol=1e-5, rtol=1e-4
        )
        ours = torch.autograd.grad(out.transpose(1, 2)[real].square().sum(), (q, k, v))
        torch.testing.assert_close(ours, gradients, atol=2e-5, rtol=1e-4)


def test_plain_causal_builds_no_mask() -> None:
    masks = AttentionMasks(S, S, torch.device("cpu"), slopes_H=gen_slopes(H, return_1d=True))
    q, k, v = (torch.randn(B, n, S, D) for n in (H, K, K))
    attend(q, k, v, masks, D**-0.5)
    assert not masks._masks and not masks._biases
    right = torch.tensor([[True] * 9, [True] * 5 + [False] * 4])
    assert drop_trivial_mask(right) is None
    assert drop_trivial_mask(right.flip(1)) is not None
    hole = right.clone()
    hole[0, 3] = False
    assert drop_trivial_mask(hole) is not None


@pytest.mark.parametrize("window", [-1, 3])
def test_the_registered_form(window: int) -> None:
    assert attention_implementations.get("torch") is scaled_multihead_dot_product_attention
    q, k, v = (torch.randn(B, S, n * D) for n in (H, K, K))
    flat = {"n_heads": H, "kv_n_heads": K, "is_causal": True, "sliding_window_size": window}
    whole, weights, _ = scaled_multihead_dot_product_attention(
        q, k, v, **flat, past_key_value=(), needs_weights=True
    )
    masks = AttentionMasks(S, S, q.device)
    heads = [x.unflatten(-1, (-1, D)).transpose(1, 2) for x in (q, k, v)]
    expected, _ = attend(*heads, masks, D**-0.5, window=window)
    torch.testing.assert_close(whole, expected.transpose(1, 2).flatten(2))
    assert weights.shape == (B, H, S, S)

    past, steps = (), []
    for step in range(S):
        now = slice(step, step + 1)
        out, _, past = scaled_multihead_dot_product_attention(
            q[:, now], k[:, now], v[:, now], **flat, past_key_value=past
        )
        steps.append(out)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    assert past[0].shape == (B, K, D, S) and past[1].shape == (B, K, S, D)


def test_errors_of_the_registered_form() -> None:
    q = torch.randn(B, S, H * D)
    args = {"n_heads": H, "kv_n_heads": H}
    with pytest.raises(RuntimeError, match="attn_bias"):
        scaled_multihead_dot_product_attention(q, q, q, **args, attn_bias=torch.zeros(1, 1, 3, S))
    past = (torch.zeros(B, H, D, 2), torch.zeros(B, H, 2, D))
    with pytest.raises(ValueError, match="sliding window"):
        scaled_multihead_dot_product_attention(
            q, q, q, **args, past_key_value=past, sliding_window_size=2
        )
    with pytest.raises(ValueError, match="max_seq_len"):
        apply_sequence_id(torch.zeros(1, 1, 4, 4), torch.zeros(1, 5), 4)
