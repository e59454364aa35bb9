"""Mixtures of experts against dense arithmetic in float64, and against transformers' Mixtral."""

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from llmfoundry.models.layers import dmoe
from llmfoundry.models.layers.dmoe import dMoE, grouped_product
from llmfoundry.models.layers.layer_builders import build_ffn

NUM_EXPERTS, TOP_K, WIDTH, HIDDEN = 4, 2, 16, 24
SETTINGS: dict[str, Any] = {
    "moe_num_experts": NUM_EXPERTS,
    "moe_top_k": TOP_K,
    "mlp_type": "glu",
    "moe_jitter_eps": 0.0,
    "moe_normalize_expert_weights": 1,
    "uniform_expert_assignment": False,
    "ffn_hidden_size": HIDDEN,
    "ffn_act_fn": {"name": "silu"},
}


def build(kind: str = "torch_dmoe", bias: bool = False, **settings: Any) -> Any:
    torch.manual_seed(2)
    return build_ffn(kind, WIDTH, 1, "cpu", bias, {**SETTINGS, **settings})


def tokens(rows: int = 3, length: int = 7) -> torch.Tensor:
    return torch.randn(rows, length, WIDTH, generator=torch.Generator().manual_seed(3))


def by_hand(ffn: Any, x: torch.Tensor, act: Any, norm: float | None, capacity: int = 10**9) -> Any:
    """Computes a mixture token by token in float64; returns it with the kept weights."""
    weights = {name: p.detach().double() for name, p in ffn.named_parameters()}
    scores = (x.double().flatten(0, -2) @ weights["router.layer.weight"].T).softmax(-1)
    is_stacked = weights["experts.mlp.w1"].ndim == 3

    def of_expert(name: str, e: int) -> torch.Tensor:
        w = weights[f"experts.mlp.{name}"]
        if is_stacked:
            return w[e]
        w = w[e * HIDDEN : (e + 1) * HIDDEN]
        return w if name == "w2" else w.T

    taken = [0] * NUM_EXPERTS
    out = torch.zeros_like(x, dtype=torch.float64).flatten(0, -2)
    for n, token in enumerate(x.double().flatten(0, -2)):
        best = scores[n].sort(descending=True).indices[:TOP_K]
        share = scores[n][best]
        if norm:
            share = share / share.pow(norm).sum().pow(1 / norm)
        for e, weight in zip(best.tolist(), share, strict=True):
            taken[e] += 1
            if taken[e] > capacity:
                continue
            h = act(token @ of_expert("w1", e))
            if "experts.mlp.v1" in weights:
                h = h * (token @ of_expert("v1", e))
            out[n] += weight * (h @ of_expert("w2", e))
    return out.view_as(x) + weights.get("experts.bias", 0.0)


@pytest.mark.parametrize("mlp_type", ["mlp", "glu"])
@pytest.mark.parametrize("norm", [None, 1, 2.0])
def test_torch_dmoe_is_the_weighted_sum(mlp_type: str, norm: float | None) -> None:
    ffn = build(mlp_type=mlp_type, moe_normalize_expert_weights=norm)
    expected = by_hand(ffn, tokens(), F.silu, norm)
    torch.testing.assert_close(ffn(tokens()).double(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ffn.double()(tokens().double()), expected, atol=1e-12, rtol=1e-10)


def test_gradients_are_those_of_dense_arithmetic() -> None:
    ffn = build().double()
    x = tokens().double().requires_grad_()
    assert torch.autograd.gradcheck(ffn, (x,), eps=1e-6)
    router, mlp = ffn.router.layer.weight, ffn.experts.mlp
    parts = [mlp.by_expert(name, getattr(mlp, name)) for name in ("w1", "v1", "w2")]
    scores = (x @ router.T).softmax(-1)
    best = scores.topk(TOP_K, dim=-1)
    share = torch.zeros_like(scores).scatter(-1, best.indices, best.values)
    share = share / share.sum(-1, keepdim=True)
    w1, v1, w2 = parts
    h = F.silu(torch.einsum("bsd,edf->bsef", x, w1)) * torch.einsum("bsd,edf->bsef", x, v1)
    dense = torch.einsum("bsef,efd,bse->bsd", h, w2, share)
    inputs = (x, *ffn.parameters())
    ours = torch.autograd.grad(ffn(x).square().sum(), inputs)
    theirs = torch.autograd.grad(dense.square().sum(), inputs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)


def test_the_block_of_mixtral() -> None:
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_local_experts=NUM_EXPERTS,
        num_experts_per_tok=TOP_K,
    )
    config._experts_implementation = "eager"
    theirs: Any = MixtralSparseMoeBlock(config)
    ours = build()
    mlp = ours.experts.mlp
    with torch.no_grad():
        theirs.gate.weight.copy_(ours.router.layer.weight)
        gate = [mlp.by_expert(n, getattr(mlp, n)).mT for n in ("w1", "v1")]
        theirs.experts.gate_up_proj.copy_(torch.cat(gate, dim=1))
        theirs.experts.down_proj.copy_(mlp.by_expert("w2", mlp.w2).mT)
    torch.testing.assert_close(ours(tokens()), theirs(tokens()), atol=1e-6, rtol=1e-5)


def test_jitter_and_turns() -> None:
    noisy, still = build(moe_jitter_eps=0.3), build()
    assert torch.equal(noisy.eval()(tokens()), still.eval()(tokens()))
    x = torch.ones(64, WIDTH)
    seen: list[torch.Tensor] = []
    noisy.train().router.layer.register_forward_hook(lambda _m, args, _out: seen.append(args[0]))
    noisy(x)
    assert seen[0].min() >= 0.7 and seen[0].max() <= 1.3 and seen[0].std() > 0.1
    assert build(uniform_expert_assignment=True).router(x).experts_NK[:3].tolist() == [
        [0, 1],
        [2, 3],
        [0, 1],
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_and_loop_give_the_same(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(10, 16, dtype=dtype), torch.randn(3, 16, 24, dtype=dtype)
    ends = torch.tensor([4, 4, 10], dtype=torch.int32)
    found = []
    for takes in (True, False):
        monkeypatch.setattr(dmoe, "_kernel_takes", lambda *_, takes=takes: takes)
        inputs = (x.clone().requires_grad_(), w.clone().requires_grad_())
        y = grouped_product(*inputs, ends)
        found.append([y, *torch.autograd.grad(y, inputs, torch.ones(10, 24, dtype=dtype))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_widths_that_the_kernel_does_not_take() -> None:
    x, w, ends = torch.randn(5, 15), torch.randn(2, 15, 23), torch.tensor([2, 5]).int()
    expected = torch.cat([x[:2] @ w[0], x[2:] @ w[1]])
    torch.testing.assert_close(grouped_product(x, w, ends), expected)


def test_autocast_computes_experts_in_low_precision() -> None:
    ffn, x = build(), tokens()
    with torch.autocast("cpu", torch.bfloat16):
        y = ffn(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), ffn(x), atol=3e-2, rtol=5e-2)
    torch.compiler.reset()
    compiled = torch.compile(ffn, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), y, atol=1e-2, rtol=1e-2)


def test_one_made_without_a_recipe() -> None:
    ffn = dMoE(None, WIDTH, HIDDEN, NUM_EXPERTS, TOP_K)
    assert ffn.experts.bias is not None
    torch.nn.init.normal_(ffn.experts.bias)
    expected = by_hand(ffn, tokens(), functools.partial(F.gelu, approximate="tanh"), None)
    torch.testing.assert_close(ffn(tokens()).double(), expected, atol=1e-6, rtol=1e-5)
    scores, weights, experts = ffn.router(tokens().flatten(0, 1))
    assert torch.equal(scores.gather(1, experts), weights)
    plain = dMoE(device=torch.device("meta"), bias=False)
    sizes = {name: tuple(p.shape) for name, p in plain.named_parameters()}
    assert sizes.pop("router.layer.weight") == (1, 1024)
    assert sizes == dict.fromkeys(("experts.mlp.w1", "experts.mlp.w2"), (4096, 1024))
