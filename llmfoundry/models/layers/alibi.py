"""ALiBi: a bias on attention that grows with distance, by a slope for each head (arXiv 2108.12409).

Legend: B batch, S query positions, T key positions, H heads.
"""

import math

import torch

__all__ = ["alibi_features", "build_alibi_bias", "check_alibi_support", "gen_slopes"]


def gen_slopes(
    n_heads: int,
    alibi_bias_max: int = 8,
    device: torch.device | str | None = None,
    return_1d: bool = False,
) -> torch.Tensor:
    """Returns each head's slope, ``[1, H, 1, 1]``, or ``[H]`` with ``return_1d``.

    They are ``2 ** (-k * alibi_bias_max / N)`` for k = 1..N, where N is the next power of two; of
    these, a head count that is none takes first every second one, then the ones between.
    """
    n_slopes = 2 ** math.ceil(math.log2(n_heads))
    k_H = torch.arange(1, n_slopes + 1, dtype=torch.float32, device=device)
    slopes_H = 2.0 ** (-k_H * (alibi_bias_max / n_slopes))
    if n_slopes != n_heads:
        slopes_H = torch.cat([slopes_H[1::2], slopes_H[::2]])[:n_heads]
    return slopes_H if return_1d else slopes_H.view(1, n_heads, 1, 1)


def build_alibi_bias(
    n_heads: int,
    seq_len: int,
    full: bool = False,
    alibi_bias_max: int = 8,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Returns the bias by key ``[1, H, 1, T]``, or by distance ``[1, H, S, T]`` with ``full``.

    The two differ by a constant for each query, which softmax does not see. A mask that is not
    causal needs the full one.
    """
    distance_T = torch.arange(1 - seq_len, 1, dtype=torch.int32, device=device)
    bias = distance_T.view(1, 1, 1, seq_len)
    if full:
        bias = -(bias - distance_T.view(1, 1, seq_len, 1)).abs()
    return (bias * gen_slopes(n_heads, alibi_bias_max, device=device)).to(dtype=dtype)


def check_alibi_support(attention_impl: str) -> bool:
    """Says whether an attention implementation can add ALiBi's bias."""
    return attention_impl in ("torch", "flash", "flex")


def alibi_features(
    slopes_H: torch.Tensor, position_BT: torch.Tensor, scale: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ALiBi's bias as a scalar product: features to append to queries and to keys.

    Causal attention with the bias by key is plain causal attention over heads that are 8 wider: no
    S x T bias is built or read, and kernels skip the future. Positions are split at 256 and slopes
    into two terms, so that bf16 holds all of it.

    Args:
        slopes_H: The heads' slopes.
        position_BT: The keys' positions.
        scale: The softmax scale, by which attention multiplies the product.
        dtype: The queries' dtype.

    Returns:
        Features ``[1, H, 1, 8]`` of every query and ``[B, 1, T, 8]`` of the keys.
    """
    high_BT, low_BT = position_BT // 256, position_BT % 256
    zero_BT = torch.zeros_like(low_BT)
    k_BT8 = torch.stack([high_BT, high_BT, low_BT, low_BT, *[zero_BT] * 4], dim=-1)

    slope_H = slopes_H.float() / scale
    first_H = slope_H.to(dtype)
    rest_H = (slope_H - first_H.float()).to(dtype)
    zero_H = torch.zeros_like(first_H)
    parts = [first_H * 256, rest_H * 256, first_H, rest_H, zero_H, zero_H, zero_H, zero_H]
    q_H8 = torch.stack(parts, dim=-1)
    return q_H8[None, :, None, :], k_BT8.to(dtype)[:, None]
