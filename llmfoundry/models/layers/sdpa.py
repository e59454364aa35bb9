"""The attention function: scores, masks, softmax and the weighted sum, by the fastest kernel.

Legend: B batch, S query positions, T key positions, H query heads, K key and value heads, D head
width, X features added for ALiBi.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from llmfoundry.models.layers.flex import attend_by_flex
from llmfoundry.models.layers.masking import AttentionMasks

__all__ = ["attend", "repeat_kv", "scaled_multihead_dot_product_attention"]


def repeat_kv(x_BKTD: torch.Tensor, n_heads: int) -> torch.Tensor:
    """Gives each query head its key or value head: ``[B, H, T, D]``."""
    groups = n_heads // x_BKTD.size(1)
    return x_BKTD if groups == 1 else x_BKTD.repeat_interleave(groups, dim=1)


def attend(
    q_BHSD: torch.Tensor,
    k_BKTD: torch.Tensor,
    v_BKTD: torch.Tensor,
    masks: AttentionMasks,
    scale: float,
    window: int = -1,
    softcap: float | None = None,
    dropout_p: float = 0.0,
    needs_weights: bool = False,
    flex: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns what the queries see, ``[B, H, S, D]``, and the weights if asked for.

    Weights need the scores themselves, and so does softcapping without FlexAttention; all else goes
    through SDPA.
    """
    if flex and not needs_weights:
        return attend_by_flex(q_BHSD, k_BKTD, v_BKTD, masks, scale, window, softcap), None
    if softcap is not None or needs_weights:
        bias = masks.bias(window, torch.float32)
        out, weights = _attend_openly(q_BHSD, k_BKTD, v_BKTD, bias, scale, softcap, dropout_p)
        return out, weights if needs_weights else None
    mask, is_causal, width = None, masks.is_plain_causal(window), v_BKTD.size(-1)
    if masks.slopes_H is not None and masks.query_length > 1:
        q_1H1X, k_11TX = masks.alibi_features(scale, q_BHSD.dtype)
        q_BHSD = torch.cat([q_BHSD, q_1H1X.expand(*q_BHSD.shape[:-1], -1)], dim=-1)
        k_BKTD = torch.cat([k_BKTD, k_11TX.expand(*k_BKTD.shape[:-1], -1)], dim=-1)
        v_BKTD = F.pad(v_BKTD, (0, q_1H1X.size(-1)))
        mask = None if is_causal else masks.mask(window, q_BHSD.dtype)
    elif masks.slopes_H is not None:
        mask = masks.bias(window, q_BHSD.dtype)
    elif not is_causal:
        mask = masks.mask(window, q_BHSD.dtype)
    if is_causal and masks.query_length != masks.key_length:
        # is_causal would have the first query see the first key only; these are the last ones.
        mask, is_causal = causal_lower_right(masks.query_length, masks.key_length), False
    out_BHSD = F.scaled_dot_product_attention(
        q_BHSD,
        k_BKTD,
        v_BKTD,
        attn_mask=mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=q_BHSD.size(1) != k_BKTD.size(1),
    )
    return out_BHSD[..., :width], None


def _attend_openly(
    q_BHSD: torch.Tensor,
    k_BKTD: torch.Tensor,
    v_BKTD: torch.Tensor,
    bias: torch.Tensor,
    scale: float,
    softcap: float | None,
    dropout_p: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes attention step by step: scores, softcap, bias, softmax, dropout, sum."""
    n_heads = q_BHSD.size(1)
    k_BHTD, v_BHTD = repeat_kv(k_BKTD, n_heads), repeat_kv(v_BKTD, n_heads)
    scores_BHST = (q_BHSD @ k_BHTD.transpose(-1, -2)) * scale
    if softcap is not None:
        scores_BHST = softcap * torch.tanh(scores_BHST / softcap)
    weights_BHST = torch.softmax(scores_BHST + bias, dim=-1)
    dropped_BHST = F.dropout(weights_BHST, dropout_p) if dropout_p else weights_BHST
    return dropped_BHST.to(v_BHTD.dtype) @ v_BHTD, weights_BHST


def _causal_bias(
    bias: torch.Tensor, query_length: int, key_length: int, window: int, causal: bool
) -> torch.Tensor:
    key_T = torch.arange(key_length, device=bias.device)
    query_S = key_T[key_length - query_length :]
    distance_ST = query_S[:, None] - key_T[None, :]
    hidden_ST = torch.zeros_like(distance_ST, dtype=torch.bool)
    if causal and query_length != 1:
        hidden_ST |= distance_ST < 0
    if window != -1:
        hidden_ST |= distance_ST.abs() > window
    return bias.masked_fill(hidden_ST, torch.finfo(bias.dtype).min)


def scaled_multihead_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    n_heads: int,
    kv_n_heads: int,
    past_key_value: tuple[torch.Tensor, ...] | None = None,
    softmax_scale: float | None = None,
    attn_bias: torch.Tensor | None = None,
    key_padding_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    training: bool = False,
    needs_weights: bool = False,
    attn_logit_softcapping: float | None = None,
    sliding_window_size: int = -1,
    **extra: Any,
) -> tuple[torch.Tensor, torch.Tensor | None, tuple[torch.Tensor, torch.Tensor] | None]:
    """Attends over flat heads: the form in which attention implementations are registered.

    Args:
        query: ``[B, S, H * D]``.
        key: ``[B, S, K * D]``.
        value: ``[B, S, K * D]``.
        n_heads: H.
        kv_n_heads: K.
        past_key_value: Keys ``[B, K, D, T]`` and values ``[B, K, T, D]`` so far; ``()`` starts.
        softmax_scale: What scores are multiplied by; ``1 / sqrt(D)`` by default.
        attn_bias: Added to the scores; its last rows and columns are used.
        key_padding_mask: ``[B, T]``, False at padding.
        is_causal: Whether queries see no later key.
        dropout_p: Probability of dropping a weight, if ``training``.
        training: Whether dropout applies.
        needs_weights: Whether weights are returned.
        attn_logit_softcapping: Scores become ``c * tanh(score / c)``.
        sliding_window_size: How far a query sees, -1 without limit.
        **extra: What other implementations need.

    Raises:
        RuntimeError: ``attn_bias`` does not fit the scores.
        ValueError: A window is used with several queries and a past.
    """
    del extra
    q_BHSD = query.unflatten(-1, (n_heads, -1)).transpose(1, 2)
    k_BKTD = key.unflatten(-1, (kv_n_heads, -1)).transpose(1, 2)
    v_BKTD = value.unflatten(-1, (kv_n_heads, -1)).transpose(1, 2)
    past = None
    if past_key_value is not None:
        if len(past_key_value) != 0:
            k_BKTD = torch.cat([past_key_value[0].transpose(-1, -2), k_BKTD], dim=2)
            v_BKTD = torch.cat([past_key_value[1], v_BKTD], dim=2)
        past = (k_BKTD.transpose(-1, -2), v_BKTD)
    query_length, key_length = q_BHSD.size(2), k_BKTD.size(2)
    if sliding_window_size != -1 and query_length not in (1, key_length):
        raise ValueError(
            f"A sliding window takes one query or as many as keys, but got {query_length} queries "
            f"and {key_length} keys."
        )
    bias = torch.zeros(1, 1, 1, 1, dtype=q_BHSD.dtype, device=query.device)
    if attn_bias is not None:
        rows, columns = attn_bias.size(2), attn_bias.size(3)
        bias = attn_bias[:, :, max(0, rows - query_length) :, max(0, columns - key_length) :]
        if bias.size(2) not in (1, query_length) or bias.size(3) not in (1, key_length):
            raise RuntimeError(
                f"attn_bias (shape: {tuple(attn_bias.shape)}) does not fit scores of "
                f"{query_length} queries and {key_length} keys."
            )
    if key_padding_mask is not None:
        hidden = ~key_padding_mask[:, None, None, :].bool()
        bias = bias.masked_fill(hidden, torch.finfo(bias.dtype).min)
    bias = _causal_bias(bias, query_length, key_length, sliding_window_size, is_causal)
    scale = softmax_scale if softmax_scale is not None else 1 / math.sqrt(q_BHSD.size(-1))
    out_BHSD, weights = _attend_openly(
        q_BHSD, k_BKTD, v_BKTD, bias, scale, attn_logit_softcapping, dropout_p * training
    )
    out = out_BHSD.transpose(1, 2).flatten(2)
    return out, weights if needs_weights else None, past
