"""Attention by torch's FlexAttention: masks and biases as functions of positions, never as tensors.

Legend: B batch, S query positions, T key positions, H query heads, K key and value heads, D head
width.
"""

import functools
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from llmfoundry.models.layers.masking import AttentionMasks

__all__ = ["attend_by_flex", "attend_by_functions", "block_mask_of", "score_of", "seen_by"]


def attend_by_flex(
    q_BHSD: torch.Tensor,
    k_BKTD: torch.Tensor,
    v_BKTD: torch.Tensor,
    masks: AttentionMasks,
    scale: float,
    window: int = -1,
    softcap: float | None = None,
) -> torch.Tensor:
    """Returns what the queries see, ``[B, H, S, D]``; zero where a query may see nothing.

    On a GPU the kernel is compiled at its first use (not run here: this machine has none). It has
    no gradients on a CPU, where the same functions are applied to the scores themselves.
    """
    score, sees = score_of(masks, softcap), seen_by(masks, window)
    if not q_BHSD.is_cuda:
        return attend_by_functions(q_BHSD, k_BKTD, v_BKTD, score, sees, scale)
    make = functools.partial(block_mask_of, masks, sees)
    return _compiled()(
        q_BHSD,
        k_BKTD,
        v_BKTD,
        score_mod=score,
        block_mask=masks.kept(("flex", window), make),
        scale=scale,
        enable_gqa=q_BHSD.size(1) != k_BKTD.size(1),
    )


def attend_by_functions(
    q_BHSD: torch.Tensor,
    k_BKTD: torch.Tensor,
    v_BKTD: torch.Tensor,
    score: Any,
    sees: Any,
    scale: float,
) -> torch.Tensor:
    """Computes what FlexAttention does of these functions, with all scores in memory."""
    groups, device = q_BHSD.size(1) // k_BKTD.size(1), q_BHSD.device
    k_BHTD, v_BHTD = (x.repeat_interleave(groups, dim=1) for x in (k_BKTD, v_BKTD))
    scores_BHST = (q_BHSD @ k_BHTD.transpose(-1, -2)).float() * scale
    index = torch.meshgrid(
        *(torch.arange(size, device=device) for size in scores_BHST.shape),
        indexing="ij",
    )
    if score is not None:
        scores_BHST = score(scores_BHST, *index)
    hidden = ~sees(*index)
    scores_BHST = scores_BHST.masked_fill(hidden, torch.finfo(torch.float32).min)
    weights_BHST = torch.softmax(scores_BHST, dim=-1).masked_fill(hidden, 0)
    return weights_BHST.to(v_BHTD.dtype) @ v_BHTD


@functools.cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=False)


def score_of(masks: AttentionMasks, softcap: float | None) -> Any:
    """Returns what changes a score: softcap and ALiBi; None for nothing."""
    slopes_H, keys_BT = masks.slopes_H, masks.keys()
    if slopes_H is None and softcap is None:
        return None
    first = masks.key_length - masks.query_length

    def change(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if slopes_H is not None:
            row = batch if keys_BT.size(0) > 1 else 0
            score = score - slopes_H[head] * (keys_BT[row, query + first] - keys_BT[row, key])
        return score

    return change


def seen_by(masks: AttentionMasks, window: int) -> Any:
    """Returns what says whether a query sees a key."""
    keys_BT, key_mask_BT, ids_BT = masks.keys(), masks.key_mask_BT, masks.sequence_id_BT
    first, narrows = masks.key_length - masks.query_length, masks.narrows(window)

    def of(rows_BT: torch.Tensor, batch: Any, key: Any) -> torch.Tensor:
        return rows_BT[batch if rows_BT.size(0) > 1 else 0, key]

    def sees(batch: Any, head: Any, query: Any, key: Any) -> Any:
        del head  # all heads see alike
        distance = of(keys_BT, batch, query + first) - of(keys_BT, batch, key)
        allowed = distance >= 0
        if narrows:
            allowed = allowed & (distance <= window)
        if key_mask_BT is not None:
            allowed = allowed & of(key_mask_BT, batch, key)
        if ids_BT is not None:
            allowed = allowed & (of(ids_BT, batch, query + first) == of(ids_BT, batch, key))
        return allowed

    return sees


def block_mask_of(masks: AttentionMasks, sees: Any) -> BlockMask:
    """Returns which blocks of queries and keys the kernel need not look at."""
    rows = (masks.keys(), masks.key_mask_BT, masks.sequence_id_BT)
    n_rows = max(each.size(0) for each in rows if each is not None)
    return create_block_mask(
        sees,
        B=n_rows if n_rows > 1 else None,
        H=None,
        Q_LEN=masks.query_length,
        KV_LEN=masks.key_length,
        device=masks.device,
    )
