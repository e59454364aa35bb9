"""The cache of an MPT: room to grow, and every way in which transformers changes it."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from llmfoundry.models.mpt.cache import CACHE_FIELD, RoomyLayer, open_cache
from llmfoundry.models.mpt.causal_lm import MPTForCausalLM
from llmfoundry.models.mpt.config import MPTConfig


def _pieces(*lengths: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(2, 3, n, 4), torch.randn(2, 3, n, 5)) for n in lengths]


@pytest.mark.parametrize("first", [1, 70])
def test_it_holds_what_transformers_layer_holds(first: int) -> None:
    ours, theirs = RoomyLayer(), DynamicLayer()

    def same() -> None:
        for found, expected in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
            assert torch.equal(found, expected)
        assert ours.get_seq_length() == theirs.get_seq_length()

    def both(action: Any) -> None:
        for layer in (ours, theirs):
            action(layer)
        same()

    steps = [1] * 200 + [3]
    for keys, values in _pieces(first, *steps):
        both(lambda layer, pair=(keys, values): layer.update(*pair))
    more = _pieces(2, 1, 1, 1, 1)
    both(lambda layer: layer.crop(-5))
    both(lambda layer: layer.update(*more[0]))
    both(lambda layer: layer.reorder_cache(torch.tensor([1, 0])))
    both(lambda layer: layer.update(*more[1]))
    both(lambda layer: layer.batch_select_indices(torch.tensor([1])))
    both(lambda layer: layer.batch_repeat_interleave(2))
    both(lambda layer: layer.update(*more[2]))
    for layer in (ours, theirs):
        layer.reset()
    for pair in more[3:]:
        both(lambda layer, pair=pair: layer.update(*pair))


def test_it_copies_rarely() -> None:
    layer, places = RoomyLayer(), set()
    for keys, values in _pieces(*[1] * 400):
        layer.update(keys, values)
        places.add(layer.keys.data_ptr())
    assert len(places) <= 6


def test_gradients_flow_through_it() -> None:
    layer, pieces, loss = RoomyLayer(), _pieces(2, 1, 1), torch.zeros(())
    for keys, values in pieces:
        layer.update(keys.requires_grad_(), values)
        loss = loss + layer.keys.square().sum()
    loss.backward()
    for times, (keys, _) in zip((3, 2, 1), pieces, strict=True):
        torch.testing.assert_close(keys.grad, 2 * times * keys.detach())


def test_other_rows_or_heads_are_refused() -> None:
    """An assignment would repeat a single row, where transformers' layer raises."""
    layer, (pair, more) = RoomyLayer(), _pieces(3, 1)
    layer.update(*pair)
    for other in [[each[:1] for each in more], [each[:, :1] for each in more]]:
        with pytest.raises(ValueError, match=r"\[2, 3\], but"):
            layer.update(*other)


def test_a_cache_that_saves_memory_is_left_as_it_is() -> None:
    cache = DynamicCache()
    cache.offloading = True  # the argument needs a GPU
    layer_class = cache.layer_class_to_replicate
    assert open_cache(cache, True, 2).cache is cache
    assert cache.layer_class_to_replicate is layer_class is not RoomyLayer


def test_an_mpt_uses_it_in_caches_of_all_makes() -> None:
    settings: dict[str, Any] = {"d_model": 32, "n_heads": 4, "n_layers": 2, "vocab_size": 64}
    model = MPTForCausalLM(MPTConfig(**settings, attn_config={"alibi": True})).eval()
    tokens = torch.randint(1, 64, (2, 5))
    caches = [DynamicCache(), DynamicCache(config=model.config)]
    with torch.no_grad():
        caches += [model(tokens, cache=cache, use_cache=True)[CACHE_FIELD] for cache in caches]
        caches.append(model(tokens, use_cache=True)[CACHE_FIELD])
    for cache in caches:
        assert [type(layer) for layer in cache.layers] == [RoomyLayer] * 2


def _grown(rows: int = 2) -> RoomyLayer:
    layer = RoomyLayer()
    for length in (5, 1):
        layer.update(torch.randn(rows, 2, length, 4), torch.randn(rows, 2, length, 4))
    return layer


def test_rows_that_a_caller_keeps_go_on_alone() -> None:
    layer = _grown()
    layer.keys, layer.values = layer.keys[:1], layer.values[:1]
    keys = layer.keys.clone()
    found, _ = layer.update(torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
    torch.testing.assert_close(found, torch.cat([keys, torch.ones(1, 2, 1, 4)], dim=-2))


def test_what_was_made_in_inference_mode_goes_on_without_it() -> None:
    with torch.inference_mode():
        layer = _grown()
    with torch.no_grad():
        found, _ = layer.update(torch.ones(2, 2, 1, 4), torch.ones(2, 2, 1, 4))
    assert found.shape == (2, 2, 7, 4)


def test_reordered_rows_keep_no_old_room() -> None:
    layer = _grown()
    layer.reorder_cache(torch.tensor([1, 1]))
    assert layer._rooms == (None, None)
    layer.reset()
    assert layer._rooms == (None, None)
