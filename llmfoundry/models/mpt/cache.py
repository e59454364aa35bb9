"""Keys and values of the past: transformers' ``Cache`` objects, and the tuples of older programs.

Legend: B batch, K key and value heads, T positions, D head width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

__all__ = ["CACHE_FIELD", "Past", "open_cache"]

CACHE_FIELD = (
    "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
)
"""What transformers calls the cache in model outputs; the name changed in 5.x."""


class Past:
    """The cache of one forward, in the form in which the caller gave it.

    Args:
        cache: Where layers keep their keys and values; None for no cache.
        is_legacy: Whether the caller passed tuples and gets tuples back.
    """

    def __init__(self, cache: Cache | None, is_legacy: bool = False) -> None:
        self.cache = cache
        self.is_legacy = is_legacy

    @property
    def length(self) -> int:
        """The number of positions in the cache."""
        return 0 if self.cache is None else int(self.cache.get_seq_length())

    def handed_back(self) -> Any:
        """Returns the cache as the caller knows it: keys ``[B, K, D, T]`` in tuples."""
        if self.cache is None or not self.is_legacy:
            return self.cache
        layers: list[Any] = self.cache.layers
        return tuple(
            (layer.keys.transpose(-1, -2), layer.values) if layer.is_initialized else ()
            for layer in layers
        )


def open_cache(past_key_values: Any, use_cache: bool, n_layers: int) -> Past:
    """Returns the cache to use for ``past_key_values``: a Cache, tuples, or nothing.

    Raises:
        ValueError: There are tuples for another number of layers.
    """
    if isinstance(past_key_values, Cache):
        return Past(past_key_values)
    if past_key_values is None:
        return Past(DynamicCache() if use_cache else None)
    if len(past_key_values) != n_layers:
        raise ValueError(
            "past_key_values must provide a past_key_value for each attention layer in the network "
            f"({len(past_key_values)=}; n_layers={n_layers})."
        )
    return Past(_from_tuples(past_key_values), is_legacy=True)


def _from_tuples(past_key_values: Sequence[Sequence[torch.Tensor]]) -> DynamicCache:
    cache = DynamicCache()
    for layer_idx, pair in enumerate(past_key_values):
        if len(pair) != 0:
            cache.update(pair[0].transpose(-1, -2), pair[1], layer_idx)
    return cache
