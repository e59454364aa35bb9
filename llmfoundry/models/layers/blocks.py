"""The transformer block: attention and FFN, each after a norm and beside a residual.

Legend: B batch, S sequence, E model width.
"""

from typing import Any

import torch

from llmfoundry.layers_registry import ffns_with_megablocks, ffns_with_norm
from llmfoundry.models.layers.attention import AttentionContext, KeyValue
from llmfoundry.models.layers.layer_builders import (
    build_attention_layer,
    build_ffn,
    build_norm,
)
from llmfoundry.models.utils.config_defaults import (
    attn_config_defaults,
    fc_type_defaults,
    ffn_config_defaults,
)

__all__ = ["FusedNormAttentionNorm", "MPTBlock"]

MODEL_KEYS = {
    "attn_type",
    "alibi",
    "attn_uses_sequence_id",
    "alibi_bias_max",
    "rope",
    "rope_theta",
    "rope_impl",
    "rope_dail_config",
    "rope_hf_config",
    "value_embeddings",
}
"""Keys of ``attn_config`` that the model uses; the rest are the attention layer's arguments."""


def _build_attention(
    d_model: int,
    n_heads: int,
    head_dim: int | None,
    attn_config: dict[str, Any],
    fc_type: dict[str, Any],
    device: str | torch.device | None,
    no_bias: bool,
    attention_bias: bool,
) -> torch.nn.Module:
    return build_attention_layer(
        attn_config["attn_type"],
        {
            "d_model": d_model,
            "n_heads": n_heads,
            "head_dim": head_dim,
            "fc_type": fc_type,
            "device": device,
            "bias": not no_bias,
            "attention_bias": attention_bias,
            **{key: value for key, value in attn_config.items() if key not in MODEL_KEYS},
        },
    )


def _norm_attention_norm(
    layer: Any,
    x_BSE: torch.Tensor,
    context: AttentionContext,
    prev_layer_key_value: KeyValue | None,
    key_value_states: torch.Tensor | None,
    x_prev: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, KeyValue]:
    """Returns the residual stream, the FFN's input, the weights, and keys and values."""
    b_BSE, weights, key_value = layer.attn(
        layer.norm_1(x_BSE),
        context,
        prev_layer_key_value=prev_layer_key_value,
        key_value_states=key_value_states,
        x_prev=None if x_prev is None else layer.norm_1(x_prev),
    )
    x_BSE = x_BSE + layer.resid_attn_dropout(b_BSE)
    m_BSE = x_BSE if layer.norm_2 is None else layer.norm_2(x_BSE)
    return x_BSE, m_BSE, weights, key_value


class FusedNormAttentionNorm(torch.nn.Module):
    """Norm, attention, residual and norm as one module, which can be checkpointed as one.

    Takes the arguments of ``MPTBlock`` that concern it.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        head_dim: int | None = None,
        attn_config: dict[str, Any] | None = None,
        resid_pdrop: float = 0.0,
        norm_type: str = "low_precision_layernorm",
        norm_eps: float = 1e-05,
        fc_type: dict[str, Any] | None = None,
        device: str | torch.device | None = None,
        no_bias: bool = False,
        attention_bias: bool = True,
        has_norm_2: bool = True,
    ) -> None:
        super().__init__()
        attn_config = attn_config or attn_config_defaults
        fc_type = fc_type or fc_type_defaults
        self.norm_1 = build_norm(norm_type.lower(), d_model, eps=norm_eps, device=device)
        self.attn = _build_attention(
            d_model, n_heads, head_dim, attn_config, fc_type, device, no_bias, attention_bias
        )
        self.norm_2 = None
        if has_norm_2:
            self.norm_2 = build_norm(norm_type.lower(), d_model, eps=norm_eps, device=device)
        self.resid_attn_dropout = torch.nn.Dropout(resid_pdrop)

    def forward(
        self,
        x_BSE: torch.Tensor,
        context: AttentionContext,
        prev_layer_key_value: KeyValue | None = None,
        key_value_states: torch.Tensor | None = None,
        x_prev: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, KeyValue]:
        """Returns the residual stream, the FFN's input, the weights, and keys and values."""
        return _norm_attention_norm(
            self, x_BSE, context, prev_layer_key_value, key_value_states, x_prev
        )


class MPTBlock(torch.nn.Module):
    """One layer of an MPT.

    Args:
        d_model: Width in and out.
        n_heads: Attention heads.
        expansion_ratio: FFN hidden width over ``d_model``.
        head_dim: Width of a head; ``d_model / n_heads`` by default.
        attn_config: The attention's settings, as in ``MPTConfig``.
        ffn_config: The FFN's settings, as in ``MPTConfig``.
        resid_pdrop: Dropout after attention and after the FFN.
        norm_type: A name of the norms registry.
        norm_eps: The norms' epsilon.
        fc_type: ``name`` and keyword arguments of the linear layers.
        device: Where the parameters are made.
        no_bias: Whether linear layers go without biases.
        attention_bias: Whether the attention's input projections have biases.
        use_pad_tok_in_ffn: Whether the FFN computes padding too.
        fuse_norm_attn_norm: Whether norms and attention are one module, ``norm_attn_norm``.
        **kwargs: The rest of the model's configuration.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        expansion_ratio: int | float,
        head_dim: int | None = None,
        attn_config: dict[str, Any] | None = None,
        ffn_config: dict[str, Any] | None = None,
        resid_pdrop: float = 0.0,
        norm_type: str = "low_precision_layernorm",
        norm_eps: float = 1e-05,
        fc_type: dict[str, Any] | None = None,
        device: str | torch.device | None = None,
        no_bias: bool = False,
        attention_bias: bool = True,
        use_pad_tok_in_ffn: bool = True,
        fuse_norm_attn_norm: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        ffn_config = dict(ffn_config or ffn_config_defaults)
        ffn_type = ffn_config.pop("ffn_type")
        self.fuse_norm_attn_norm = fuse_norm_attn_norm
        self.use_pad_tok_in_ffn = use_pad_tok_in_ffn
        around = FusedNormAttentionNorm(
            d_model,
            n_heads,
            head_dim,
            attn_config,
            resid_pdrop,
            norm_type,
            norm_eps,
            fc_type,
            device,
            no_bias,
            attention_bias,
            has_norm_2=ffn_type not in ffns_with_norm,
        )
        ffn_config.setdefault("fc_type", fc_type or fc_type_defaults)
        ffn_bias = ffn_config.pop("bias", not no_bias)
        if ffn_type in ffns_with_megablocks:
            ffn_config["num_layers"] = kwargs.get("n_layers", 1)
        if fuse_norm_attn_norm:
            self.norm_attn_norm = around
        else:
            # The parts stand in the block itself, under the names that checkpoints have.
            self.norm_1, self.attn, self.norm_2 = around.norm_1, around.attn, around.norm_2
        self.ffn = build_ffn(ffn_type, d_model, expansion_ratio, device, ffn_bias, ffn_config)
        if not fuse_norm_attn_norm:
            self.resid_attn_dropout = around.resid_attn_dropout
        self.resid_ffn_dropout = torch.nn.Dropout(resid_pdrop)

    def forward(
        self,
        x_BSE: torch.Tensor,
        context: AttentionContext,
        attention_mask: torch.Tensor | None = None,
        prev_layer_key_value: KeyValue | None = None,
        key_value_states: torch.Tensor | None = None,
        x_prev: torch.Tensor | None = None,
    ) -> tuple[Any, ...]:
        """Returns the residual stream, the attention weights, and keys and values.

        In training, a mixture of experts with losses adds how tokens were spread over experts.

        Args:
            x_BSE: The residual stream.
            context: What all layers of this forward share.
            attention_mask: ``[B, S]``, False at padding; only ``use_pad_tok_in_ffn: false`` asks.
            prev_layer_key_value: Keys and values of the layer that this one reuses.
            key_value_states: What keys and values are computed from, if not ``x_BSE``.
            x_prev: The input of the layer whose input this one's keys are computed from.
        """
        inputs = (x_BSE, context, prev_layer_key_value, key_value_states, x_prev)
        if self.fuse_norm_attn_norm:
            x_BSE, m_BSE, weights, key_value = self.norm_attn_norm(*inputs)
        else:
            x_BSE, m_BSE, weights, key_value = _norm_attention_norm(self, *inputs)
        n_BSE, routing = self._apply_ffn(m_BSE, attention_mask)
        outputs = (x_BSE + self.resid_ffn_dropout(n_BSE), weights, key_value)
        return outputs if routing is None else (*outputs, routing)

    def _apply_ffn(
        self, m_BSE: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, Any]:
        """Returns what the FFN gives, and its routing, if it has any."""
        if self.use_pad_tok_in_ffn or attention_mask is None:
            return self._call_ffn(m_BSE)
        is_token_BS = attention_mask[:, -m_BSE.size(1) :].bool()
        n_NE, routing = self._call_ffn(m_BSE[is_token_BS])
        n_BSE = torch.zeros_like(m_BSE, dtype=n_NE.dtype).index_put((is_token_BS,), n_NE)
        return n_BSE, routing

    def _call_ffn(self, m: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if self.training and getattr(self.ffn, "gives_routing", False):
            return self.ffn(m, return_routing=True)
        return self.ffn(m), None
