"""Face of the layers."""

from llmfoundry.models.layers.alibi import build_alibi_bias, check_alibi_support, gen_slopes
from llmfoundry.models.layers.attention import (
    GroupedQueryAttention,
    MultiheadAttention,
    MultiQueryAttention,
)
from llmfoundry.models.layers.blocks import FusedNormAttentionNorm, MPTBlock
from llmfoundry.models.layers.custom_embedding import SharedEmbedding
from llmfoundry.models.layers.dmoe import DroplessMLP, LearnedRouter, dMoE
from llmfoundry.models.layers.fc import build_fc
from llmfoundry.models.layers.ffn import MPTGLU, MPTMLP
from llmfoundry.models.layers.flash import flash_attn_fn
from llmfoundry.models.layers.layer_builders import build_attention_layer, build_ffn, build_norm
from llmfoundry.models.layers.masking import attn_bias_shape, build_attn_bias
from llmfoundry.models.layers.norm import LPLayerNorm, LPRMSNorm, RMSNorm, TritonRMSNorm
from llmfoundry.models.layers.sdpa import scaled_multihead_dot_product_attention

__all__ = [
    "MPTGLU",
    "MPTMLP",
    "DroplessMLP",
    "FusedNormAttentionNorm",
    "GroupedQueryAttention",
    "LPLayerNorm",
    "LPRMSNorm",
    "LearnedRouter",
    "MPTBlock",
    "MultiQueryAttention",
    "MultiheadAttention",
    "RMSNorm",
    "SharedEmbedding",
    "TritonRMSNorm",
    "attn_bias_shape",
    "build_alibi_bias",
    "build_attention_layer",
    "build_attn_bias",
    "build_fc",
    "build_ffn",
    "build_norm",
    "check_alibi_support",
    "dMoE",
    "flash_attn_fn",
    "gen_slopes",
    "scaled_multihead_dot_product_attention",
]
