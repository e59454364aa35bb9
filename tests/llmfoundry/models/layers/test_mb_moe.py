"""mb_moe and mb_dmoe: capacity, biases, shared experts, and losses by their papers' formulas."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from llmfoundry.models.layers.mb_moe import sum_routings
from tests.llmfoundry.models.layers.test_dmoe import (
    HIDDEN,
    NUM_EXPERTS,
    TOP_K,
    WIDTH,
    build,
    by_hand,
    tokens,
)

GELU_TANH = {"name": "gelu", "approximate": "tanh"}
PLAIN: dict[str, Any] = {"mlp_type": "mlp", "ffn_act_fn": None, "moe_world_size": 1}


def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize("mlp_type", ["mlp", "glu"])
def test_mb_dmoe_drops_nothing(mlp_type: str) -> None:
    ffn = build("mb_dmoe", bias=True, **{**PLAIN, "mlp_type": mlp_type}).train()
    torch.nn.init.normal_(ffn.experts.bias)
    assert ffn.experts.mlp.w1.shape == ffn.experts.mlp.w2.shape == (NUM_EXPERTS * HIDDEN, WIDTH)
    expected = by_hand(ffn, tokens(), gelu, 1)
    torch.testing.assert_close(ffn(tokens()).double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("factor", [0, 0.5, 1, 1.25, 3])
def test_mb_moe_drops_what_is_beyond_its_capacity(factor: float) -> None:
    ffn = build("mb_moe", **PLAIN, moe_capacity_factor=factor)
    assert ffn.experts.mlp.w1.shape == (NUM_EXPERTS, WIDTH, HIDDEN)
    assert ffn.experts.mlp.w2.shape == (NUM_EXPERTS, HIDDEN, WIDTH)
    x = tokens(4, 10)
    capacity = int(factor * 40 * TOP_K / NUM_EXPERTS) or 10**9
    expected = by_hand(ffn, x, gelu, 1, capacity)
    torch.testing.assert_close(ffn.train()(x).double(), expected, atol=1e-6, rtol=1e-5)
    whole = by_hand(ffn, x, gelu, 1)
    assert torch.equal(expected, whole) == (factor in (0, 3))
    torch.testing.assert_close(ffn.eval()(x).double(), whole, atol=1e-6, rtol=1e-5)


def test_no_expert_computes_more_than_its_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    ffn = build("mb_moe", **PLAIN, moe_capacity_factor=0.5).train()
    with torch.no_grad():  # all tokens go to the first two experts
        ffn.router.layer.weight.copy_(torch.arange(NUM_EXPERTS, 0, -1)[:, None].expand(-1, WIDTH))
    seen: list[list[int]] = []
    compute = ffn.experts._compute

    def watch(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        seen.append([len(x), *ends.diff(prepend=torch.zeros(1)).tolist()])
        return compute(x, ends)

    monkeypatch.setattr(ffn.experts, "_compute", watch)
    x = tokens(4, 10).abs()
    expected = by_hand(ffn, x, gelu, 1, 10)
    torch.testing.assert_close(ffn(x).double(), expected, atol=1e-6, rtol=1e-5)
    assert seen == [[40, 10, 10, 10, 10]]


def test_dropped_tokens_give_no_gradients() -> None:
    ffn = build("mb_moe", **PLAIN, moe_capacity_factor=0.5).double().train()
    x = tokens().double().requires_grad_()
    assert torch.autograd.gradcheck(ffn, (x,), eps=1e-6)


def test_load_balancing_loss_is_switch_s_and_z_loss_st_moe_s() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    layers = [
        build("mb_dmoe", **PLAIN, moe_loss_weight=0.3, moe_zloss_weight=0.01, num_layers=2)
        for _ in range(2)
    ]
    torch.nn.init.normal_(layers[1].router.layer.weight)
    x = tokens()
    found = sum_routings([layer.train()(x, return_routing=True)[1] for layer in layers])
    logits = [layer.router.layer(x.flatten(0, 1)) for layer in layers]
    theirs: Any = [load_balancing_loss_func((each,), NUM_EXPERTS, TOP_K) for each in logits]
    torch.testing.assert_close(found.balance_loss, 0.3 * sum(theirs) / 2 / TOP_K)
    z: Any = [each.double().exp().sum(-1).log().square().mean() for each in logits]
    assert found.z_loss is not None
    assert found.z_loss.item() == pytest.approx(0.01 * float(sum(z).detach()) / 2)  # type: ignore[union-attr]
    counts = [each.topk(TOP_K).indices.flatten().bincount(minlength=NUM_EXPERTS) for each in logits]
    assert torch.equal(found.tokens_per_expert, torch.stack(counts))


def test_even_load_costs_the_weight_and_the_gradient_evens_it() -> None:
    ffn = build("mb_dmoe", **PLAIN, moe_loss_weight=0.2, uniform_expert_assignment=True)
    torch.nn.init.zeros_(ffn.router.layer.weight)
    assert ffn(tokens(2, 8), return_routing=True)[1].balance_loss.item() == pytest.approx(0.2)
    ffn = build("mb_dmoe", **PLAIN, moe_loss_weight=1.0)
    optimizer = torch.optim.SGD(ffn.parameters(), lr=0.5)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = ffn(tokens(8, 16), return_routing=True)[1].balance_loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] and losses[-1] < 1.02


def test_precision_of_the_losses() -> None:
    low = build("mb_dmoe", **PLAIN).bfloat16()
    high = build("mb_dmoe", **PLAIN, moe_lbl_in_fp32=True).bfloat16()
    x = tokens(16, 64).bfloat16()
    one, other = (each(x, return_routing=True)[1].balance_loss for each in (low, high))
    assert one.dtype == other.dtype == torch.float32
    logits = low.router.layer(x.flatten(0, 1))
    scores = logits.softmax(-1)
    counts = scores.topk(TOP_K).indices.flatten().bincount(minlength=NUM_EXPERTS)
    exact = (counts / counts.sum() * scores.double().mean(0)).sum() * NUM_EXPERTS * 0.1
    assert other.item() == pytest.approx(exact.item(), rel=1e-6)
    assert one.item() == pytest.approx(exact.item(), rel=1e-2)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_shared_expert(is_weighted: bool) -> None:
    settings = {**PLAIN, "mlp_type": "glu", "shared_expert": True, "shared_expert_hidden_size": 8}
    ffn = build("mb_dmoe", **settings, shared_expert_weighted_sum=is_weighted)
    x, shared = tokens(), ffn.shared_expert
    assert shared.up_proj.weight.shape == (8, WIDTH)
    dense = shared.down_proj(gelu(shared.gate_proj(x)) * shared.up_proj(x)).double()
    routed = by_hand(ffn, x, gelu, 1)
    weights = (1 / (TOP_K + 1), TOP_K / (TOP_K + 1)) if is_weighted else (1, 1)
    expected = weights[0] * dense + weights[1] * routed
    torch.testing.assert_close(ffn(x).double(), expected, atol=1e-6, rtol=1e-5)


def test_recomputing_saves_what_is_inside_and_changes_nothing() -> None:
    grads, saved = [], []
    for recomputes in (False, True):
        ffn = build("mb_dmoe", **PLAIN, memory_optimized_mlp=recomputes)
        sizes: list[int] = []

        def keep(t: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(t.numel())
            return t

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            y = ffn(tokens())
        y.square().sum().backward()
        grads.append([p.grad for p in ffn.parameters()])
        saved.append(sum(sizes))
    assert saved[1] < saved[0]
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


def test_no_tokens() -> None:
    y, routing = build("mb_moe", **PLAIN, moe_zloss_weight=1.0).train()(
        torch.zeros(0, WIDTH), return_routing=True
    )
    assert y.shape == (0, WIDTH)
    assert routing.balance_loss.item() == routing.z_loss.item() == 0
