"""ALiBi's slopes and bias, and the bias as features."""

import pytest
import torch

from llmfoundry.models.layers.alibi import alibi_features, build_alibi_bias, gen_slopes
from llmfoundry.models.layers.masking import attn_bias_shape, build_attn_bias


def test_slopes_of_published_models() -> None:
    """Field case B81: head counts that are no power of two."""
    powers = {
        6: [-2, -4, -6, -8, -1, -3],
        8: [-1, -2, -3, -4, -5, -6, -7, -8],
        12: [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5],
    }
    for n_heads, exponents in powers.items():
        expected = 2.0 ** torch.tensor(exponents, dtype=torch.float32)
        torch.testing.assert_close(gen_slopes(n_heads, return_1d=True), expected)
        assert gen_slopes(n_heads).shape == (1, n_heads, 1, 1)


def test_bias_by_key_and_by_distance_differ_by_a_constant_for_each_query() -> None:
    by_key = build_alibi_bias(4, 5)
    by_distance = build_alibi_bias(4, 5, full=True)
    assert by_key.shape == (1, 4, 1, 5) and by_distance.shape == (1, 4, 5, 5)
    past = torch.ones(5, 5, dtype=torch.bool).tril()
    difference = by_key.expand_as(by_distance) - by_distance
    for query in range(5):
        seen = difference[0, :, query][:, past[query]]
        torch.testing.assert_close(seen, seen[:, :1].expand_as(seen))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_heads", [6, 8, 12])
def test_features_give_the_bias(dtype: torch.dtype, n_heads: int) -> None:
    length, scale = 2048, 80**-0.5
    slopes = gen_slopes(n_heads, return_1d=True)
    q_feature, k_feature = alibi_features(slopes, torch.arange(length)[None], scale, dtype)
    assert q_feature.dtype == k_feature.dtype == dtype
    bias = (q_feature.double() @ k_feature.double().transpose(-1, -2)) * scale
    expected = slopes.double().view(1, -1, 1, 1) * torch.arange(length)
    torch.testing.assert_close(bias, expected, rtol=2e-5, atol=1e-9)


def test_shapes() -> None:
    def shape(impl: str, alibi: bool, causal: bool, ids: bool) -> tuple[int, ...] | None:
        return attn_bias_shape(impl, 4, 8, alibi, causal, ids)

    assert shape("flash", True, True, True) is None
    assert shape("torch", True, True, False) == (1, 4, 1, 8)
    assert shape("torch", True, False, False) == (1, 4, 8, 8)
    assert shape("torch", True, True, True) == (1, 4, 8, 8)
    assert shape("torch", False, True, True) == (1, 1, 8, 8)
    assert shape("torch", False, True, False) is None
    with pytest.raises(ValueError, match="triton"):
        shape("triton", True, True, True)
    bias = build_attn_bias("torch", torch.zeros(1, 4, 1, 8), 4, 8, causal=True, alibi=True)
    torch.testing.assert_close(bias, build_alibi_bias(4, 8))
