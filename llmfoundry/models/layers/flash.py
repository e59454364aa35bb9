"""Upstream's flash-attention function and the padding info that it takes, on torch's own kernels.

MPT's own layers call ``sdpa.attend``; this is for programs that call the function themselves.

Legend: B batch, S query positions, T key positions, H query heads, K key and value heads, D head
width, N tokens that are no padding.
"""

from typing import Any

import torch
import torch.nn.functional as F

from llmfoundry.models.layers.masking import AttentionMasks, is_left_padded
from llmfoundry.models.layers.sdpa import attend, scaled_multihead_dot_product_attention

__all__ = ["flash_attn_fn", "gen_attention_mask_in_length", "gen_flash_attn_padding_info"]


def gen_attention_mask_in_length(
    sequence_id: torch.Tensor | None,
    S: int,
    attn_uses_sequence_id: bool,
    attn_impl: str,
    attention_mask: torch.Tensor | None,
) -> torch.Tensor | None:
    """Returns how many tokens each document of a row has, ``[B, S]``; None where none is asked.

    Documents stand one after the other, by ascending id; an id below zero is padding.

    Raises:
        ValueError: ``sequence_id`` is not S long.
        NotImplementedError: A row begins with padding.
    """
    if sequence_id is None or not attn_uses_sequence_id or attn_impl != "flash":
        return None
    if sequence_id.size(-1) != S:
        raise ValueError(f"sequence_id has {sequence_id.size(-1)} positions, but S is {S}.")
    is_token_BS = sequence_id >= 0
    if attention_mask is not None:
        is_token_BS = is_token_BS & attention_mask.bool()
    if is_left_padded(is_token_BS):
        raise NotImplementedError("Left padding is not supported with documents; pad on the right.")
    counts_BS = torch.zeros(sequence_id.shape, dtype=torch.int32, device=sequence_id.device)
    return counts_BS.scatter_add_(1, sequence_id.clamp(min=0).long(), is_token_BS.int())


def _unpadded(
    mask_BT: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Returns where the tokens stand in the flattened batch, where documents end, the longest."""
    ends = F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    return mask_BT.flatten().nonzero().flatten(), ends, int(lengths.max())


def gen_flash_attn_padding_info(
    bsz: int,
    S: int,
    past_key_len: int,
    device: torch.device,
    attention_mask_in_length: torch.Tensor | None = None,
    attention_mask: torch.Tensor | None = None,
) -> dict[str, Any]:
    """Returns where tokens stand and documents end, as ``flash_attn_fn`` takes it.

    Args:
        bsz: B.
        S: How many queries there are: the last of the positions.
        past_key_len: How many keys there are before them.
        device: Where the tensors are made.
        attention_mask_in_length: Tokens of each document of a row, ``[B, S]``; the rest is padding.
        attention_mask: ``[B, T]``, False at padding; each row is one document.
    """
    if attention_mask_in_length is not None:
        counts_BS = attention_mask_in_length
        position_T = torch.arange(counts_BS.size(1), device=counts_BS.device)
        is_token_BT = position_T < counts_BS.sum(1, keepdim=True)
        keys = queries = _unpadded(is_token_BT, counts_BS[counts_BS != 0])
    else:
        if attention_mask is None:
            attention_mask = torch.ones(bsz, past_key_len + S, dtype=torch.bool, device=device)
        mask_BT, mask_BS = attention_mask.bool(), attention_mask[:, -S:].bool()
        keys, queries = (_unpadded(mask, mask.sum(1)) for mask in (mask_BT, mask_BS))
    return {
        "indices_q": queries[0],
        "indices_k": keys[0],
        "indices_v": keys[0],
        "cu_seqlens_q": queries[1],
        "cu_seqlens_k": keys[1],
        "max_seqlen_q": queries[2],
        "max_seqlen_k": keys[2],
    }


def _documents(info: dict[str, Any], rows: int, length: int) -> torch.Tensor | None:
    """Returns each key's document ``[B, T]``, -1 at padding; None where each row is one document.

    Documents are numbered through the batch.
    """
    indices_N, ends = info["indices_k"], info["cu_seqlens_k"]
    if len(indices_N) == rows * length and len(ends) == rows + 1:
        return None
    order_N = torch.arange(len(indices_N), device=ends.device)
    ids = torch.full((rows * length,), -1, device=ends.device)
    ids[indices_N] = torch.searchsorted(ends[1:].long(), order_N, right=True)
    return ids.view(rows, length)


def flash_attn_fn(
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
    should_repeat_kv_for_gqa: bool = True,
    sliding_window_size: int = -1,
    alibi_slopes: torch.Tensor | None = None,
    flash_attn_padding_info: dict[str, Any] | None = None,
    attn_logit_softcapping: float | None = None,
) -> tuple[torch.Tensor, None, tuple[torch.Tensor, torch.Tensor] | None]:
    """Attends over flat heads like flash-attn's packed kernel, without that package, on any device.

    Args:
        query: ``[B, S, H * D]``.
        key: ``[B, S, K * D]``.
        value: ``[B, S, K * D]``.
        n_heads: H.
        kv_n_heads: K.
        past_key_value: Keys and values so far, ``[B, T, K * D]``; ``()`` starts.
        softmax_scale: What scores are multiplied by; ``1 / sqrt(D)`` by default.
        attn_bias: Not taken.
        key_padding_mask: Not taken; padding is in ``flash_attn_padding_info``.
        is_causal: Whether queries see no later key.
        dropout_p: Probability of dropping a weight, if ``training``.
        training: Whether dropout applies.
        needs_weights: Weights are never returned.
        should_repeat_kv_for_gqa: Upstream's choice between two ways to the same result.
        sliding_window_size: How far a query sees, -1 without limit.
        alibi_slopes: ALiBi's slopes ``[H]``.
        flash_attn_padding_info: What ``gen_flash_attn_padding_info`` returns.
        attn_logit_softcapping: Scores become ``c * tanh(score / c)``.

    Returns:
        The output, zero at padding; None; and keys and values if ``past_key_value`` is given.

    Raises:
        ValueError: There is a ``key_padding_mask``, or no ``flash_attn_padding_info``.
        NotImplementedError: There is an ``attn_bias``, or a past with several queries.
    """
    del needs_weights, should_repeat_kv_for_gqa
    if key_padding_mask is not None:
        raise ValueError("key_padding_mask should be None for flash attn; pass padding info.")
    if flash_attn_padding_info is None:
        raise ValueError("flash_attn_padding_info is required; see gen_flash_attn_padding_info.")
    if attn_bias is not None:
        raise NotImplementedError("attn_bias not implemented for flash attn; use attn_impl: torch.")
    past = None
    if past_key_value is not None:
        if len(past_key_value) != 0:
            key = torch.cat([past_key_value[0], key], dim=1)
            value = torch.cat([past_key_value[1], value], dim=1)
        past = (key, value)
    rows, n_queries, n_keys = query.size(0), query.size(1), key.size(1)
    if n_queries not in (1, n_keys):
        raise NotImplementedError(
            f"flash attn takes one query or as many as keys, but got {n_queries} queries and "
            f"{n_keys} keys."
        )
    scale = softmax_scale if softmax_scale is not None else (query.size(-1) / n_heads) ** -0.5
    ids_BT = _documents(flash_attn_padding_info, rows, n_keys)
    if is_causal or n_queries == 1:
        q_BHSD = query.unflatten(-1, (n_heads, -1)).transpose(1, 2)
        k_BKTD, v_BKTD = (x.unflatten(-1, (kv_n_heads, -1)).transpose(1, 2) for x in (key, value))
        masks = AttentionMasks(
            n_queries, n_keys, query.device, sequence_id_BT=ids_BT, slopes_H=alibi_slopes
        )
        out_BHSD, _ = attend(
            q_BHSD, k_BKTD, v_BKTD, masks, scale, sliding_window_size, attn_logit_softcapping,
            dropout_p * training,
        )  # fmt: skip
        out = out_BHSD.transpose(1, 2).flatten(2)
    else:
        bias = torch.zeros(1, 1, n_keys, n_keys, device=query.device, dtype=query.dtype)
        if alibi_slopes is not None:
            key_T = torch.arange(n_keys, device=query.device)
            distance_TT = (key_T[:, None] - key_T).abs()
            bias = bias - (distance_TT * alibi_slopes.view(1, -1, 1, 1)).to(query.dtype)
        if ids_BT is not None:
            is_other = ids_BT[:, None, :, None] != ids_BT[:, None, None, :]
            bias = bias.masked_fill(is_other, torch.finfo(bias.dtype).min)
        out, _, _ = scaled_multihead_dot_product_attention(
            query, key, value, n_heads, kv_n_heads,
            softmax_scale=scale, attn_bias=bias, dropout_p=dropout_p, training=training,
            attn_logit_softcapping=attn_logit_softcapping,
            sliding_window_size=sliding_window_size,
        )  # fmt: skip
    if len(flash_attn_padding_info["indices_q"]) == rows * n_queries:
        return out, None, past
    is_query = torch.zeros(rows * n_queries, dtype=torch.bool, device=query.device)
    is_query[flash_attn_padding_info["indices_q"]] = True
    return out.masked_fill(~is_query.view(rows, n_queries, 1), 0.0), None, past
