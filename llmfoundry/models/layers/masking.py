"""Who may attend to whom: decided once for a forward, for all layers.

Legend: B batch, S query positions, T key positions (past and present), H heads.
"""

from collections.abc import Callable
from typing import Any

import torch

from llmfoundry.models.layers.alibi import alibi_features, build_alibi_bias
from llmfoundry.models.layers.sequence_share import SequenceShare

__all__ = [
    "AttentionMasks",
    "apply_sequence_id",
    "attn_bias_shape",
    "build_attn_bias",
    "count_positions",
    "drop_trivial_mask",
    "index_in_document",
    "is_left_padded",
]


def is_left_padded(mask_BT: torch.Tensor) -> bool:
    """Says whether some row begins with padding."""
    return not bool(mask_BT[:, 0].all())


def drop_trivial_mask(mask_BT: torch.Tensor | None) -> torch.Tensor | None:
    """Returns None where padding stands on the right only, so that causality hides it already.

    The test waits for the device once, and saves every layer from reading a mask.
    """
    if mask_BT is None or torch.compiler.is_compiling():
        return mask_BT
    is_right_padded = mask_BT[:, 0].all() & (mask_BT[:, 1:] <= mask_BT[:, :-1]).all()
    return None if bool(is_right_padded) else mask_BT


def count_positions(
    first: int,
    end: int,
    device: torch.device,
    key_mask_BT: torch.Tensor | None,
    position_ids: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns positions ``[B or 1, end - first]``, less the padding before each."""
    if position_ids is None:
        position_ids = torch.arange(first, end, device=device)[None]
    if key_mask_BT is None:
        return position_ids
    n_padding_BS = (~key_mask_BT).cumsum(dim=1)[:, first - end :]
    return (position_ids - n_padding_BS).clamp(min=0)


def index_in_document(sequence_id_BS: torch.Tensor) -> torch.Tensor:
    """Returns each position's index in its document."""
    index_S = torch.arange(sequence_id_BS.size(1), device=sequence_id_BS.device)
    is_start_BS = torch.ones_like(sequence_id_BS, dtype=torch.bool)
    is_start_BS[:, 1:] = sequence_id_BS[:, 1:] != sequence_id_BS[:, :-1]
    start_BS = torch.where(is_start_BS, index_S, 0).cummax(dim=1).values
    return index_S - start_BS


class AttentionMasks:
    """The masks of one forward, each built at its first use and shared by the layers that ask.

    Args:
        query_length: How many queries there are; they are the last ones of the keys' positions.
        key_length: How many keys there are.
        device: Where the masks are made.
        key_mask_BT: False at padding.
        sequence_id_BT: The document of each key; documents do not see each other.
        slopes_H: ALiBi's slopes.
        position_BT: Each key's position, if not all positions have keys; they grow.
    """

    def __init__(
        self,
        query_length: int,
        key_length: int,
        device: torch.device,
        key_mask_BT: torch.Tensor | None = None,
        sequence_id_BT: torch.Tensor | None = None,
        slopes_H: torch.Tensor | None = None,
        position_BT: torch.Tensor | None = None,
    ) -> None:
        self.position_BT = position_BT
        self.query_length = query_length
        self.key_length = key_length
        self.device = device
        self.key_mask_BT = key_mask_BT
        self.sequence_id_BT = sequence_id_BT
        self.slopes_H = slopes_H
        self._masks: dict[tuple[int, torch.dtype], torch.Tensor | None] = {}
        self._biases: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        self._features: dict[tuple[float, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}
        self._kept: dict[Any, Any] = {}
        self._by_heads: dict[tuple[int, int], AttentionMasks] = {}

    def of_share(self, share: SequenceShare) -> tuple["AttentionMasks", ...]:
        """Returns the masks for each piece of this rank's share of the queries, in order.

        A piece sees no key behind its end, so its keys end with it.
        """
        key_mask_BT, ids_BT = self.key_mask_BT, self.sequence_id_BT
        return tuple(
            AttentionMasks(
                share.piece_length(self.key_length),
                end,
                self.device,
                None if key_mask_BT is None else share.pad(key_mask_BT)[:, :end],
                None if ids_BT is None else share.pad(ids_BT, -1)[:, :end],
                self.slopes_H,
            )
            for end in share.ends(self.key_length)
        )

    def of_heads(self, first: int, count: int) -> "AttentionMasks":
        """Returns the masks for some heads only, where a rank has no others."""
        if self.slopes_H is None:
            return self
        if (first, count) not in self._by_heads:
            self._by_heads[first, count] = AttentionMasks(
                self.query_length,
                self.key_length,
                self.device,
                self.key_mask_BT,
                self.sequence_id_BT,
                self.slopes_H[first : first + count],
                self.position_BT,
            )
        return self._by_heads[first, count]

    def of_tokens(self, index_BK: torch.Tensor) -> "AttentionMasks":
        """Returns the masks among some tokens of each row; positions stay what they were."""
        key_mask_BT, ids_BT, n_tokens = self.key_mask_BT, self.sequence_id_BT, index_BK.size(1)
        rows = index_BK.size(0)
        return AttentionMasks(
            n_tokens,
            n_tokens,
            self.device,
            None if key_mask_BT is None else key_mask_BT.expand(rows, -1).gather(1, index_BK),
            None if ids_BT is None else ids_BT.expand(rows, -1).gather(1, index_BK),
            self.slopes_H,
            index_BK,
        )

    def is_plain_causal(self, window: int) -> bool:
        """Says whether queries see all that came before, which kernels know by themselves."""
        return (
            self.query_length > 1
            and self.key_mask_BT is None
            and self.sequence_id_BT is None
            and not self.narrows(window)
        )

    def mask(self, window: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns what scores are given to hide keys, ``[B or 1, 1, S, T]``; None for nothing.

        It is a finite number, not minus infinity: a query that may see nothing, which is padding,
        then sees everything alike instead of becoming NaN, which would spread.
        """
        key = (window if self.narrows(window) else -1, dtype)
        if key not in self._masks:
            allowed = self._allowed(key[0])
            if allowed is not None:
                hidden = torch.zeros(allowed.shape, dtype=dtype, device=self.device)
                allowed = hidden.masked_fill(~allowed, torch.finfo(dtype).min)
            self._masks[key] = allowed
        return self._masks[key]

    def bias(self, window: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns mask and ALiBi as one additive bias, ``[B or 1, H or 1, S, T]``."""
        key = (window, dtype)
        if key not in self._biases:
            self._biases[key] = self._build_bias(window, dtype)
        return self._biases[key]

    def alibi_features(self, scale: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ALiBi as features of queries and keys; see ``alibi.alibi_features``."""
        key = (scale, dtype)
        if key not in self._features:
            assert self.slopes_H is not None
            self._features[key] = alibi_features(self.slopes_H, self.keys(), scale, dtype)
        return self._features[key]

    def narrows(self, window: int) -> bool:
        """Says whether a window hides keys that causality would not."""
        if self.position_BT is not None:  # what is left may lie further apart than it is long
            return window != -1
        return window != -1 and window < self.key_length - 1

    def keys(self) -> torch.Tensor:
        """Returns the keys' positions, ``[B or 1, T]``."""
        if self.position_BT is not None:
            return self.position_BT
        return torch.arange(self.key_length, device=self.device)[None]

    def _distance(self) -> torch.Tensor:
        """Returns how far each key lies behind each query, ``[B or 1, 1, S, T]``."""
        key_BT = self.keys()
        query_BS = key_BT[:, self.key_length - self.query_length :]
        return query_BS[:, None, :, None] - key_BT[:, None, None, :]

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns what a kernel made of these masks, once."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def _allowed(self, window: int) -> torch.Tensor | None:
        """Returns what each query may see, ``[B or 1, 1, S, T]``; None if it is every key."""
        if (
            self.query_length == 1
            and self.key_mask_BT is None
            and self.sequence_id_BT is None
            and not self.narrows(window)
        ):
            return None  # one query, the last: it sees all that came before
        distance_B1ST = self._distance()
        allowed = distance_B1ST >= 0
        if self.narrows(window):
            allowed = allowed & (distance_B1ST <= window)
        if self.key_mask_BT is not None:
            allowed = allowed & self.key_mask_BT[:, None, None, :]
        if self.sequence_id_BT is not None:
            ids_BT = self.sequence_id_BT
            ids_BS = ids_BT[:, self.key_length - self.query_length :]
            allowed = allowed & (ids_BS[:, None, :, None] == ids_BT[:, None, None, :])
        return allowed

    def _build_bias(self, window: int, dtype: torch.dtype) -> torch.Tensor:
        bias = torch.zeros(1, 1, 1, self.key_length, dtype=torch.float32, device=self.device)
        if self.slopes_H is not None:
            # By distance, not by key: near the diagonal, where it matters, bf16 then holds it.
            bias = -self._distance() * self.slopes_H.view(1, -1, 1, 1)
        mask = self.mask(window, dtype)
        if mask is not None:
            bias = bias.masked_fill(mask != 0, torch.finfo(dtype).min)
        return bias.to(dtype)


def attn_bias_shape(
    attn_impl: str,
    n_heads: int,
    seq_len: int,
    alibi: bool,
    causal: bool,
    use_sequence_id: bool,
) -> tuple[int, int, int, int] | None:
    """Returns the shape of the additive bias that an implementation is given; None for none.

    Raises:
        ValueError: The implementation is unknown.
    """
    if attn_impl in ("flash", "flex"):
        return None
    if attn_impl != "torch":
        raise ValueError(f"{attn_impl=} is an invalid setting; use torch, flash or flex.")
    if alibi:
        rows = seq_len if use_sequence_id or not causal else 1
        return (1, n_heads, rows, seq_len)
    if use_sequence_id:
        return (1, 1, seq_len, seq_len)
    return None


def build_attn_bias(
    attn_impl: str,
    attn_bias: torch.Tensor,
    n_heads: int,
    seq_len: int,
    causal: bool = False,
    alibi: bool = False,
    alibi_bias_max: int = 8,
) -> torch.Tensor | None:
    """Returns ``attn_bias`` with ALiBi added; None where the implementation takes no bias.

    Raises:
        ValueError: The implementation is unknown.
    """
    if attn_impl in ("flash", "flex"):
        return None
    if attn_impl != "torch":
        raise ValueError(f"{attn_impl=} is an invalid setting; use torch, flash or flex.")
    if not alibi:
        return attn_bias
    return attn_bias + build_alibi_bias(
        n_heads,
        seq_len,
        full=not causal,
        alibi_bias_max=alibi_bias_max,
        device=attn_bias.device,
        dtype=attn_bias.dtype,
    )


def apply_sequence_id(
    attn_bias: torch.Tensor, sequence_id: torch.Tensor, max_seq_len: int
) -> torch.Tensor:
    """Returns ``attn_bias`` with documents hidden from each other.

    Raises:
        ValueError: The sequence is longer than ``max_seq_len``.
    """
    seq_len = sequence_id.shape[-1]
    if seq_len > max_seq_len:
        raise ValueError(f"sequence_id has {seq_len} positions, but max_seq_len is {max_seq_len}.")
    attn_bias = attn_bias[..., :seq_len, :seq_len]
    is_other = sequence_id[:, None, :, None] != sequence_id[:, None, None, :]
    return attn_bias.masked_fill(is_other, torch.finfo(attn_bias.dtype).min)
