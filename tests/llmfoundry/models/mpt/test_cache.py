"""The cache of an MPT: room to grow, and every way in which transformers changes it."""

from typing import Any

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from llmfoundry.models.mpt.cache import CACHE_FIELD, RoomyLayer
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
