"""Attention layers: projections, norms, positions and the cache around the attention function.

Legend: B batch, S query positions, T key positions, E model width, H query heads, K key and value
heads, D head width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from llmfoundry.layers_registry import attention_implementations
from llmfoundry.models.layers.alibi import build_alibi_bias, gen_slopes
from llmfoundry.models.layers.fc import build_fc
from llmfoundry.models.layers.flash import flash_attn_fn
from llmfoundry.models.layers.layer_builders import build_norm
from llmfoundry.models.layers.masking import AttentionMasks, attn_bias_shape
from llmfoundry.models.layers.rotary import RotaryTables, tokens_of
from llmfoundry.models.layers.sdpa import attend, scaled_multihead_dot_product_attention
from llmfoundry.models.layers.sequence_share import SequenceShare
from llmfoundry.models.layers.value_embedding import ValueEmbedding

__all__ = [
    "AttentionContext",
    "GroupedQueryAttention",
    "KeyValue",
    "MultiQueryAttention",
    "MultiheadAttention",
    "attn_bias_shape",
    "build_alibi_bias",
    "flash_attn_fn",
    "gen_slopes",
    "scaled_multihead_dot_product_attention",
]


class KeyValue(NamedTuple):
    """Keys and values, each ``[B, K, T, D]``."""

    keys: torch.Tensor
    values: torch.Tensor

    def of_tokens(self, index_BK: torch.Tensor, length: int) -> "KeyValue":
        """Returns those of some tokens of each row, for a layer that leaves out the others."""
        if self.keys.size(2) != length:
            raise NotImplementedError(
                "A layer cannot use the keys and values of one that left out tokens; leave out "
                "TokenDropping or the block_overrides that reuse them."
            )
        return KeyValue(tokens_of(self.keys, index_BK), tokens_of(self.values, index_BK))


@dataclass
class AttentionContext:
    """What all layers of one forward share.

    Args:
        masks: Who may attend to whom.
        rotary: Rotary tables, if the model has rotary embeddings.
        position_BS: Each query's index in its sequence, for temperature tuning.
        cache: A transformers ``Cache`` that takes each layer's keys and values.
        needs_weights: Whether attention weights are returned.
        share: What this rank computes of each sequence, where ranks compute it together.
        parts: The masks for each piece of that share.
        ids_BS: The tokens, if the model was given tokens.
    """

    masks: AttentionMasks
    rotary: RotaryTables | None = None
    position_BS: torch.Tensor | None = None
    cache: Any = None
    needs_weights: bool = False
    share: SequenceShare | None = None
    parts: Sequence[AttentionMasks] = ()
    ids_BS: torch.Tensor | None = None

    def of_tokens(self, index_BK: torch.Tensor, length: int) -> "AttentionContext":
        """Returns the context of some tokens of each row, which keep their positions."""
        if self.share is not None or self.cache is not None or self.needs_weights:
            raise NotImplementedError(
                f"Tokens can be left out of whole sequences of {length} tokens only: without a "
                "cache, context parallelism or output_attentions."
            )
        position_BS = self.position_BS
        if position_BS is not None:
            position_BS = position_BS.expand(index_BK.size(0), -1).gather(1, index_BK)
        return replace(
            self,
            masks=self.masks.of_tokens(index_BK),
            rotary=None if self.rotary is None else self.rotary.of_tokens(index_BK),
            position_BS=position_BS,
            ids_BS=None if self.ids_BS is None else self.ids_BS.gather(1, index_BK),
        )


def _check_heads(n_heads: int, kv_n_heads: int) -> None:
    if kv_n_heads <= 0:
        raise ValueError(f"kv_n_heads should be greater than zero, but got {kv_n_heads}.")
    if kv_n_heads > n_heads:
        raise ValueError(
            f"The number of KV heads should be less than or equal to Q heads, but got {kv_n_heads} "
            f"and {n_heads}."
        )
    if n_heads % kv_n_heads != 0:
        raise ValueError(
            "Each Q head should get the same number of KV heads, so n_heads must be divisible by "
            f"kv_n_heads, but got {n_heads} and {kv_n_heads}."
        )


class GroupedQueryAttention(torch.nn.Module):
    """Attention whose query heads share key and value heads in groups.

    Args:
        d_model: Width in and out.
        n_heads: Query heads.
        kv_n_heads: Key and value heads; each serves ``n_heads / kv_n_heads`` query heads.
        head_dim: Width of a head; ``d_model / n_heads`` by default.
        attn_impl: A name of ``attention_implementations``.
        clip_qkv: Projections are clamped to this magnitude.
        qk_ln: Normalises all queries' heads together, and all keys'.
        qk_gn: Normalises each head on its own.
        fused_qkv: One projection for queries, keys and values.
        softmax_scale: What scores are multiplied by; ``1 / sqrt(head_dim)`` by default.
        attn_pdrop: Probability of dropping an attention weight in training.
        norm_type: The kind of the query and key norms.
        norm_eps: Their epsilon.
        fc_type: ``name`` and keyword arguments of the linear layers.
        device: Where the parameters are made.
        bias: Whether the output projection has a bias.
        attention_bias: Whether the input projections have.
        sliding_window_size: How far back a query sees; -1 without limit.
        reuse_kv_layer_idx: The layer whose keys and values are used instead of own ones.
        reuse_kv_x_layer_idx: The layer whose input keys and values are computed from.
        attn_logit_softcapping: Scores become ``c * tanh(score / c)``.
        attn_temperature_tuning: ``floor_scale`` and ``attn_scale`` by which queries grow with
            position.
        kv_dim: Width of what keys and values are computed from, if it is not ``d_model``.
        nope: Whether this layer goes without positions.
        value_residual: The share of the first layer's values in this one's (arXiv 2410.17897).
        value_vocab_size: Rows of the layer's `ValueEmbedding`; None for no such table.
    """

    block_idx: int = 0
    """The layer's place, under which it caches; set by the model."""
    first_head: int | None = None
    """The first query head that is computed here, where ranks share the layer's heads."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        kv_n_heads: int,
        head_dim: int | None = None,
        attn_impl: str = "flash",
        clip_qkv: float | None = None,
        qk_ln: bool = False,
        qk_gn: bool = False,
        fused_qkv: bool = True,
        softmax_scale: float | None = None,
        attn_pdrop: float = 0.0,
        norm_type: str = "low_precision_layernorm",
        norm_eps: float = 1e-05,
        fc_type: dict[str, Any] | None = None,
        device: str | torch.device | None = None,
        bias: bool = True,
        attention_bias: bool = True,
        sliding_window_size: int = -1,
        reuse_kv_layer_idx: int | None = None,
        reuse_kv_x_layer_idx: int | None = None,
        attn_logit_softcapping: float | None = None,
        attn_temperature_tuning: dict[str, Any] | None = None,
        kv_dim: int | None = None,
        nope: bool = False,
        value_residual: float = 0.0,
        value_vocab_size: int | None = None,
    ) -> None:
        super().__init__()
        _check_heads(n_heads, kv_n_heads)
        if qk_ln and qk_gn:
            raise ValueError("Only one of qk_ln and qk_gn can be set to True.")
        if reuse_kv_layer_idx is not None and reuse_kv_x_layer_idx is not None:
            raise ValueError(
                "Only one of reuse_kv_layer_idx and reuse_kv_x_layer_idx can be set for a layer."
            )
        if reuse_kv_x_layer_idx is not None and fused_qkv:
            raise ValueError("reuse_kv_x_layer_idx needs fused_qkv: false.")
        if kv_dim is not None and fused_qkv:
            raise ValueError("kv_dim needs fused_qkv: false.")
        self.d_model = d_model
        self.n_heads = n_heads
        self.kv_n_heads = kv_n_heads
        self.head_dim = head_dim or d_model // n_heads
        self.kv_dim = kv_dim if kv_dim is not None else d_model
        self.attn_impl = attn_impl
        self.attn_fn = attention_implementations.get(attn_impl)
        self.clip_qkv = clip_qkv
        self.qk_ln = qk_ln
        self.qk_gn = qk_gn
        self.fused_qkv = fused_qkv
        self.softmax_scale = (
            softmax_scale if softmax_scale is not None else 1 / math.sqrt(self.head_dim)
        )
        self.attn_dropout_p = attn_pdrop
        self.sliding_window_size = sliding_window_size
        self.reuse_kv_layer_idx = reuse_kv_layer_idx
        self.reuse_kv_x_layer_idx = reuse_kv_x_layer_idx
        self.attn_logit_softcapping = attn_logit_softcapping
        self.attn_temperature_tuning = attn_temperature_tuning or {"attn_scale": 0.0}
        self.nope = nope
        self.value_residual = value_residual
        fc_type = {**(fc_type or {"name": "torch"}), "device": device}
        self._build_projections({**fc_type, "bias": attention_bias})
        self._build_norms(norm_type, norm_eps, device)
        self._build_value_embedding(value_vocab_size, device)
        self.out_proj = build_fc(n_heads * self.head_dim, d_model, {**fc_type, "bias": bias})
        self.out_proj._is_residual = True

    def _build_projections(self, fc_kwargs: dict[str, Any]) -> None:
        width, heads, kv_heads = self.head_dim, self.n_heads, self.kv_n_heads

        def head_projection(in_features: int, n_heads: int) -> Any:
            layer = build_fc(in_features, n_heads * width, fc_kwargs)
            layer._fused = (0, [width * head for head in range(1, n_heads)])
            return layer

        if self.reuse_kv_layer_idx is not None:
            self.Wq = head_projection(self.d_model, heads)
        elif self.fused_qkv:
            self.Wqkv = head_projection(self.d_model, heads + 2 * kv_heads)
        else:
            self.Wq = head_projection(self.d_model, heads)
            self.Wk = head_projection(self.kv_dim, kv_heads)
            self.Wv = head_projection(self.kv_dim, kv_heads)

    def _build_norms(
        self, norm_type: str, norm_eps: float, device: str | torch.device | None
    ) -> None:
        if not (self.qk_ln or self.qk_gn):
            return
        name = norm_type.lower()
        q_width = self.head_dim if self.qk_gn else self.head_dim * self.n_heads
        k_width = self.head_dim if self.qk_gn else self.head_dim * self.kv_n_heads
        self.q_ln = build_norm(name, q_width, eps=norm_eps, device=device)
        if self.reuse_kv_layer_idx is None:
            self.k_ln = build_norm(name, k_width, eps=norm_eps, device=device)

    def _build_value_embedding(
        self, vocab_size: int | None, device: str | torch.device | None
    ) -> None:
        self.value_embedding: ValueEmbedding | None = None
        if vocab_size is None:
            return
        if self.reuse_kv_layer_idx is not None:
            raise ValueError(
                "attn_config.value_embeddings names a layer that has no values of its own, as it "
                f"reuses those of layer {self.reuse_kv_layer_idx} (reuse_kv_layer_idx); list only "
                "layers that compute values."
            )
        self.value_embedding = ValueEmbedding(
            vocab_size, self.kv_n_heads, self.head_dim, self.d_model, device
        )

    def keep_heads(self, rank: int, size: int) -> None:
        """Leaves this rank its share of the heads; who asks has split the projections alike."""
        self.n_heads, self.kv_n_heads = self.n_heads // size, self.kv_n_heads // size
        self.first_head = rank * self.n_heads

    def forward(
        self,
        x_BSE: torch.Tensor,
        context: AttentionContext,
        prev_layer_key_value: KeyValue | None = None,
        key_value_states: torch.Tensor | None = None,
        x_prev: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, KeyValue]:
        """Attends.

        Args:
            x_BSE: The layer's input.
            context: What all layers of this forward share.
            prev_layer_key_value: The keys and values to use, with ``reuse_kv_layer_idx``; or those
                of the first layer, with ``value_residual``.
            key_value_states: What keys and values are computed from, if not ``x_BSE``.
            x_prev: The same, with ``reuse_kv_x_layer_idx``.

        Returns:
            The output, the weights if the context asks for them, and keys and values.
        """
        q_BHSD, k_BKSD, v_BKSD = self._project(x_BSE, key_value_states, x_prev)
        q_BHSD = self._place(q_BHSD, context)
        if self.reuse_kv_layer_idx is not None:
            if prev_layer_key_value is None:
                raise ValueError("prev_layer_key_value is None, but reuse_kv_layer_idx is set.")
            k_BKTD, v_BKTD = prev_layer_key_value
        else:
            rotary = None if self.nope else context.rotary
            if rotary is not None and not rotary.after_cache:
                k_BKSD = rotary.rotate_keys(k_BKSD)
            if self.value_embedding is not None:
                ids_BS = context.ids_BS if key_value_states is None else None
                v_BKSD = self.value_embedding(v_BKSD, x_BSE, ids_BS)
            k_BKTD, v_BKTD = k_BKSD, v_BKSD
            if context.share is not None:
                k_BKTD, v_BKTD = context.share.gather_each([k_BKSD, v_BKSD], dim=2)
            if self.value_residual and prev_layer_key_value is not None:
                first_BKSD = prev_layer_key_value[1][:, :, -v_BKTD.size(2) :]
                v_BKTD = v_BKTD.lerp(first_BKSD, self.value_residual)
            if context.cache is not None:  # of mixed values: the past needs no mixing again
                k_BKTD, v_BKTD = context.cache.update(k_BKTD, v_BKTD, self.block_idx)
                n_keys = context.masks.key_length
                if k_BKTD.size(2) > n_keys:  # a static cache has room for later ones
                    k_BKTD, v_BKTD = k_BKTD[:, :, :n_keys], v_BKTD[:, :, :n_keys]
            if rotary is not None and rotary.after_cache:
                k_BKTD = rotary.rotate_keys(k_BKTD)
        parts = context.parts or (context.masks,)
        if len(parts) == 1:
            out_BHSD, weights = self._attend(q_BHSD, k_BKTD, v_BKTD, parts[0], context)
        else:
            out_BHSD, weights = self._attend_in_parts(q_BHSD, k_BKTD, v_BKTD, context), None
        out_BSE = self.out_proj(out_BHSD.transpose(1, 2).flatten(2))
        return out_BSE, weights, KeyValue(k_BKTD, v_BKTD)

    def _project(
        self,
        x_BSE: torch.Tensor,
        key_value_states: torch.Tensor | None,
        x_prev: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Any, Any]:
        """Returns queries, keys and values by head, clipped and normalised; None where reused."""
        if self.fused_qkv and key_value_states is not None:
            raise ValueError("key_value_states needs fused_qkv: false.")
        if self.reuse_kv_layer_idx is not None:
            q, k, v = self._clip(self.Wq(x_BSE)), None, None
        elif self.fused_qkv:
            qkv = self._clip(self.Wqkv(x_BSE))
            widths = [heads * self.head_dim for heads in (self.n_heads, *[self.kv_n_heads] * 2)]
            q, k, v = qkv.split(widths, dim=-1)
        else:
            source = self._key_value_source(x_BSE, key_value_states, x_prev)
            q, k, v = (self._clip(y) for y in (self.Wq(x_BSE), self.Wk(source), self.Wv(source)))
        q_BHSD = self._by_head(q, self.n_heads, getattr(self, "q_ln", None))
        if k is None or v is None:
            return q_BHSD, None, None
        k_BKSD = self._by_head(k, self.kv_n_heads, getattr(self, "k_ln", None))
        return q_BHSD, k_BKSD, self._by_head(v, self.kv_n_heads, None)

    def _key_value_source(
        self,
        x_BSE: torch.Tensor,
        key_value_states: torch.Tensor | None,
        x_prev: torch.Tensor | None,
    ) -> torch.Tensor:
        if self.reuse_kv_x_layer_idx is None:
            return x_BSE if key_value_states is None else key_value_states
        if key_value_states is not None:
            raise NotImplementedError(
                "reuse_kv_x_layer_idx and key_value_states are two sources of keys; give one."
            )
        if x_prev is None:
            raise ValueError("x_prev is None, but reuse_kv_x_layer_idx is set.")
        return x_prev

    def _clip(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(-self.clip_qkv, self.clip_qkv) if self.clip_qkv else x

    def _by_head(self, x: torch.Tensor, n_heads: int, norm: torch.nn.Module | None) -> torch.Tensor:
        if norm is not None and self.qk_ln:
            x = norm(x).to(x.dtype)
        x = x.unflatten(-1, (n_heads, self.head_dim))
        if norm is not None and self.qk_gn:
            x = norm(x).to(x.dtype)
        return x.transpose(1, 2)

    def _place(self, q_BHSD: torch.Tensor, context: AttentionContext) -> torch.Tensor:
        """Gives queries their positions: temperature, then rotation."""
        attn_scale = self.attn_temperature_tuning["attn_scale"]
        if attn_scale != 0.0:
            if context.position_BS is None:
                raise ValueError("attn_temperature_tuning needs positions, and got none.")
            floor_scale = self.attn_temperature_tuning["floor_scale"]
            steps_BS = ((context.position_BS + 1) / floor_scale).floor()
            growth_BS = (steps_BS + 1).log() * attn_scale + 1
            q_BHSD = q_BHSD * growth_BS[:, None, :, None].to(q_BHSD.dtype)
        if context.rotary is not None and not self.nope:
            q_BHSD = context.rotary.rotate_queries(q_BHSD)
        return q_BHSD

    def _attend_in_parts(
        self,
        q_BHSD: torch.Tensor,
        k_BKTD: torch.Tensor,
        v_BKTD: torch.Tensor,
        context: AttentionContext,
    ) -> torch.Tensor:
        pieces = q_BHSD.split([masks.query_length for masks in context.parts], dim=2)
        outputs = []
        for q_piece, masks in zip(pieces, context.parts, strict=True):
            k_piece, v_piece = k_BKTD[:, :, : masks.key_length], v_BKTD[:, :, : masks.key_length]
            outputs.append(self._attend(q_piece, k_piece, v_piece, masks, context)[0])
        return torch.cat(outputs, dim=2)

    def _attend(
        self,
        q_BHSD: torch.Tensor,
        k_BKTD: torch.Tensor,
        v_BKTD: torch.Tensor,
        masks: AttentionMasks,
        context: AttentionContext,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        dropout_p = self.attn_dropout_p if self.training else 0.0
        if self.first_head is not None:
            masks = masks.of_heads(self.first_head, self.n_heads)
        if self.attn_fn is scaled_multihead_dot_product_attention:
            return attend(
                q_BHSD,
                k_BKTD,
                v_BKTD,
                masks,
                scale=self.softmax_scale,
                window=self.sliding_window_size,
                softcap=self.attn_logit_softcapping,
                dropout_p=dropout_p,
                needs_weights=context.needs_weights,
                flex=self.attn_impl == "flex",
            )
        out, weights, _ = self.attn_fn(  # one that somebody registered
            query=q_BHSD.transpose(1, 2).flatten(2),
            key=k_BKTD.transpose(1, 2).flatten(2),
            value=v_BKTD.transpose(1, 2).flatten(2),
            n_heads=self.n_heads,
            kv_n_heads=self.kv_n_heads,
            past_key_value=None,
            softmax_scale=self.softmax_scale,
            attn_bias=masks.bias(self.sliding_window_size, q_BHSD.dtype),
            key_padding_mask=masks.key_mask_BT,
            is_causal=True,
            dropout_p=self.attn_dropout_p,
            training=self.training,
            needs_weights=context.needs_weights,
            attn_logit_softcapping=self.attn_logit_softcapping,
            sliding_window_size=self.sliding_window_size,
        )
        return out.unflatten(-1, (self.n_heads, -1)).transpose(1, 2), weights


class MultiheadAttention(GroupedQueryAttention):
    """Attention where each query head has its own keys and values.

    Takes the arguments of ``GroupedQueryAttention`` without ``kv_n_heads``.
    """

    def __init__(self, d_model: int, n_heads: int, **kwargs: Any) -> None:
        _refuse_kv_n_heads(type(self), kwargs)
        super().__init__(d_model, n_heads, kv_n_heads=n_heads, **kwargs)


class MultiQueryAttention(GroupedQueryAttention):
    """Attention where all query heads share one head of keys and values.

    Takes the arguments of ``GroupedQueryAttention`` without ``kv_n_heads``.
    """

    def __init__(self, d_model: int, n_heads: int, **kwargs: Any) -> None:
        _refuse_kv_n_heads(type(self), kwargs)
        super().__init__(d_model, n_heads, kv_n_heads=1, **kwargs)


def _refuse_kv_n_heads(cls: type, kwargs: dict[str, Any]) -> None:
    if "kv_n_heads" in kwargs:
        raise TypeError(
            f"{cls.__name__} takes no kv_n_heads; use attn_type: grouped_query_attention."
        )
