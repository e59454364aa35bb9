"""Keys and values of the past: transformers' ``Cache`` objects, and the tuples of older programs.

Legend: B batch, K key and value heads, T positions, D head width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

__all__ = ["CACHE_FIELD", "Past", "open_cache"]

CACHE_FIELD = (
    "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
)
"""What transformers calls the cache in model outputs; the name changed in 5.x."""


class RoomyLayer(DynamicLayer):
    """One layer's keys and values, at the beginning of tensors with room for more.

    Transformers' own layer copies all it has for each new token.
    """

    _rooms: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends keys and values ``[B, K, S, D]``; returns all there are."""
        needs_grad = torch.is_grad_enabled() and key_states.requires_grad
        if needs_grad or torch.compiler.is_compiling():
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        length, added = self.get_seq_length(), key_states.size(-2)
        keys_room = _with_room(self._rooms[0], self.keys, length, key_states)
        values_room = _with_room(self._rooms[1], self.values, length, value_states)
        self._rooms = keys_room, values_room
        self.keys = keys_room[..., : length + added, :]
        self.values = values_room[..., : length + added, :]
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Any) -> None:
        """Takes the rows of the chosen beams."""
        self._rooms = (None, None)
        super().reorder_cache(beam_idx)

    def offload(self) -> None:
        """Moves keys and values to the CPU."""
        self._rooms = (None, None)
        super().offload()

    def reset(self) -> None:
        """Forgets all."""
        self._rooms = (None, None)
        super().reset()


def _with_room(
    room: torch.Tensor | None, kept: Any, length: int, new: torch.Tensor
) -> torch.Tensor:
    """Returns a tensor that begins with ``kept`` and ``new``: ``room``, if they fit into it.

    What is kept is no longer in the room after rows were reordered, repeated or moved.

    Raises:
        ValueError: Batch or heads of both differ.
    """
    if length and kept.shape[:2] != new.shape[:2]:  # an assignment would repeat a single row
        raise ValueError(
            f"The cache has [batch, heads] {list(kept.shape[:2])}, but new keys or values have "
            f"{list(new.shape[:2])}; both must be the same."
        )
    end = length + new.size(-2)
    fits = (
        room is not None
        and room.size(-2) >= end
        and room.data_ptr() == kept.data_ptr()
        and room.shape[:2] == new.shape[:2]  # the caller may have kept the first rows only
        and room.is_inference() == torch.is_inference_mode_enabled()
    )
    if room is None or not fits:
        batch, heads, _, width = new.shape
        room = new.new_empty(batch, heads, end + max(end // 4, 64), width)
        if length:
            room[..., :length, :] = kept
    room[..., length:end, :] = new
    return room


class Past:
    """The cache of one forward, in the form in which the caller gave it.

    Args:
        cache: Where layers keep their keys and values; None for no cache.
        is_legacy: Whether the caller passed tuples and gets tuples back.
    """

    def __init__(self, cache: Cache | None, is_legacy: bool = False) -> None:
        self.cache = cache
        self.is_legacy = is_legacy
        self.length = 0 if cache is None else int(cache.get_seq_length())
        """The number of positions in the cache when the forward begins."""

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
        return Past(_made_roomy(past_key_values))
    if past_key_values is None:
        return Past(_made_roomy(DynamicCache()) if use_cache else None)
    if len(past_key_values) != n_layers:
        raise ValueError(
            "past_key_values must provide a past_key_value for each attention layer in the network "
            f"({len(past_key_values)=}; n_layers={n_layers})."
        )
    return Past(_from_tuples(past_key_values), is_legacy=True)


def _made_roomy(cache: Cache) -> Cache:
    """Replaces layers that are empty yet, and those to come, by such as have room."""
    if getattr(cache, "offloading", False):  # the room would stay where memory is to be saved
        return cache
    if cache.layer_class_to_replicate is DynamicLayer:
        cache.layer_class_to_replicate = RoomyLayer
    for index, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and not layer.is_initialized:
            cache.layers[index] = RoomyLayer()
    return cache


def _from_tuples(past_key_values: Sequence[Sequence[torch.Tensor]]) -> DynamicCache:
    cache = DynamicCache()
    for layer_idx, pair in enumerate(past_key_values):
        if len(pair) != 0:
            cache.update(pair[0].transpose(-1, -2), pair[1], layer_idx)
    return cache
