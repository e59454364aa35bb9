"""ALiBi's bias, as the mask that transformers' attention adds to its scores.

Transformers asks for a mask once in a forward, so that all layers share the bias.
"""

from typing import Any

import torch

from composer.algorithms.utils.low_precision import autocast_dtype

ATTENTION_NAME = "composer_alibi"
"""The name of the attention with the bias among transformers' attention implementations."""


def alibi_slopes(n_heads: int, device: Any = None) -> torch.Tensor:
    """Returns each head's slope ``[n_heads]``.

    They are ``2 ** (-8 * i / n)`` for i = 1..n. If n is not a power of two, those of the power
    below come first, then every second one of the power above.
    """
    power = 2 ** (n_heads.bit_length() - 1)

    def of_power(n: int) -> torch.Tensor:
        return torch.exp2(-8.0 / n * torch.arange(1, n + 1, device=device))

    return torch.cat([of_power(power), of_power(2 * power)[::2]])[:n_heads]


def alibi_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    attention_mask: torch.Tensor | None = None,
    device: Any = "cpu",
    dtype: torch.dtype = torch.float32,
    config: Any = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Returns what is added to the scores ``[batch or 1, heads, queries, keys]``.

    It is minus slope times distance where a query may look, and the smallest number elsewhere.

    Args:
        batch_size: How many sequences there are.
        q_length: How many queries each has.
        kv_length: How many keys each has.
        q_offset: The position of the first query.
        kv_offset: The position of the first key.
        attention_mask: False at padding.
        device: Where to make it.
        dtype: The dtype of the activations.
        config: The model's configuration.
        kwargs: What else transformers' masks are made from.
    """
    from transformers.masking_utils import sdpa_mask

    lengths: Any = {
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "device": device,
    }
    allowed = sdpa_mask(batch_size, attention_mask=attention_mask, **lengths, **kwargs)
    if allowed is None and not kwargs.get("allow_is_bidirectional_skip", False):
        # None stands for what kernels know by themselves: no padding, no look ahead.
        allowed = sdpa_mask(1, **lengths, **{**kwargs, "allow_is_causal_skip": False})
    # By distance, not by key: close by, where it matters, bf16 then tells keys apart.
    query = torch.arange(q_length, device=device)[:, None] + q_offset
    distance = (query - torch.arange(kv_length, device=device) - kv_offset).abs()
    bias = -alibi_slopes(config.num_attention_heads, device)[:, None, None] * distance
    dtype = autocast_dtype(torch.device(device)) or dtype
    if allowed is None:
        return bias[None].to(dtype)
    return bias.masked_fill(~allowed, torch.finfo(dtype).min).to(dtype)


def alibi_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attends with a mask that `alibi_mask` has made.

    Raises:
        ValueError: If the mask is another one.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    is_bias = attention_mask is not None and attention_mask.is_floating_point()
    if attention_mask is None or not is_bias or attention_mask.shape[1] != query.shape[1]:
        raise ValueError(
            "With ALiBi the model makes the attention mask itself; pass a mask of padding, "
            "[batch, keys], instead of one for each query."
        )
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


def use_alibi_attention(config: Any) -> None:
    """Lets the models of a transformers configuration attend with ALiBi's bias.

    Raises:
        NotImplementedError: If the model's attention or positions do not go with the bias.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    attention = config._attn_implementation
    if attention not in (None, "eager", "sdpa", ATTENTION_NAME):
        raise NotImplementedError(
            f"ALiBi cannot add its bias to the attention implementation {attention!r}; load the "
            "model with attn_implementation='sdpa'."
        )
    if getattr(config, "position_embedding_type", None) not in (None, "absolute"):
        raise NotImplementedError(
            f"ALiBi replaces absolute positions, not {config.position_embedding_type!r}."
        )
    if getattr(config, "add_cross_attention", False):
        raise NotImplementedError(
            "ALiBi has no bias for cross-attention, whose queries and keys are of two sequences; "
            "it cannot be applied to a model with add_cross_attention=True."
        )
    AttentionInterface.register(ATTENTION_NAME, alibi_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, alibi_mask)
    config._attn_implementation = ATTENTION_NAME
