"""The chunked loss against logits and ``F.cross_entropy``."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F

from llmfoundry.models.utils.chunked_cross_entropy import PIECE_ELEMENTS, chunked_cross_entropy

N, E, V = 37, 16, 53


def _by_logits(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    target: torch.Tensor,
    scale: float | None,
    cap: float | None,
) -> torch.Tensor:
    logits = F.linear(hidden, weight) * (1.0 if scale is None else scale)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    return F.cross_entropy(logits.float(), target, reduction="sum", ignore_index=-100)


def _inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    hidden = torch.randn(N, E, requires_grad=True)
    weight = torch.randn(V, E, requires_grad=True)
    target = torch.randint(V, (N,))
    target[::3] = -100
    return hidden, weight, target


@pytest.mark.parametrize(
    ("scale", "cap", "chunk_size"), list(product([None, 0.3], [None, 1.5], [1, 8, 37, 100, None]))
)
def test_equals_the_loss_of_logits(
    scale: float | None, cap: float | None, chunk_size: int | None
) -> None:
    hidden, weight, target = _inputs()
    expected = _by_logits(hidden, weight, target, scale, cap)
    gradients = torch.autograd.grad(expected / 7, (hidden, weight))
    loss = chunked_cross_entropy(
        hidden, weight, target, logit_scale=scale, softcap=cap, chunk_size=chunk_size
    )
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(loss / 7, (hidden, weight)), gradients)


@pytest.mark.parametrize(
    ("scale", "cap", "chunk_size"), list(product([None, 0.3], [None, 1.5], [8, None]))
)
def test_z_loss_equals_its_formula_in_double_precision(
    scale: float | None, cap: float | None, chunk_size: int | None
) -> None:
    hidden, weight, target = _inputs()
    exact = [each.detach().double().requires_grad_() for each in (hidden, weight)]
    logits = F.linear(*exact) * (1.0 if scale is None else scale)
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    z = logits.exp().sum(dim=-1).log().square()[target != -100].sum()
    expected = F.cross_entropy(logits, target, reduction="sum", ignore_index=-100) + 0.25 * z
    gradients = torch.autograd.grad(expected / 7, exact)
    loss = chunked_cross_entropy(
        hidden, weight, target, logit_scale=scale, softcap=cap, chunk_size=chunk_size, z_loss=0.25
    )
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0)
    for found, exactly in zip(torch.autograd.grad(loss / 7, (hidden, weight)), gradients):
        torch.testing.assert_close(found.double(), exactly, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n_rows", [1, 5])
def test_pieces_change_nothing(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, target = _inputs()
    settings = {"logit_scale": 0.3, "softcap": 1.5, "z_loss": 0.25, "chunk_size": 17}
    whole = chunked_cross_entropy(hidden, weight, target, **settings)
    gradients = torch.autograd.grad(whole, (hidden, weight))
    monkeypatch.setitem(PIECE_ELEMENTS, "cpu", n_rows * V)
    loss = chunked_cross_entropy(hidden, weight, target, **settings)
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(torch.autograd.grad(loss, (hidden, weight)), gradients)


def test_one_of_the_inputs_may_be_frozen_and_evaluation_needs_no_gradient() -> None:
    hidden, weight, target = _inputs()
    expected = _by_logits(hidden, weight, target, None, None)
    want_hidden, want_weight = torch.autograd.grad(expected, (hidden, weight))
    only_hidden = chunked_cross_entropy(hidden, weight.detach(), target)
    torch.testing.assert_close(torch.autograd.grad(only_hidden, hidden)[0], want_hidden)
    only_weight = chunked_cross_entropy(hidden.detach(), weight, target)
    torch.testing.assert_close(torch.autograd.grad(only_weight, weight)[0], want_weight)
    with torch.no_grad():
        torch.testing.assert_close(chunked_cross_entropy(hidden, weight, target), expected)


def test_no_target_gives_zero() -> None:
    """Field case B03."""
    hidden, weight, target = _inputs()
    loss = chunked_cross_entropy(hidden, weight, torch.full_like(target, -100))
    loss.backward()
    assert loss.item() == 0
    assert not hidden.grad.any() and not weight.grad.any()


def test_autocast() -> None:
    hidden, weight, target = _inputs()
    with torch.autocast("cpu", torch.bfloat16):
        expected = _by_logits(hidden, weight, target, None, None)
        loss = chunked_cross_entropy(hidden, weight, target, chunk_size=8)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-5)
    ours = torch.autograd.grad(loss, (hidden, weight))
    theirs = torch.autograd.grad(expected, (hidden, weight))
    assert ours[0].dtype == ours[1].dtype == torch.float32
    torch.testing.assert_close(ours, theirs, atol=0.02, rtol=0.02)


def test_a_second_derivative_is_refused() -> None:
    hidden, weight, target = _inputs()
    loss = chunked_cross_entropy(hidden, weight, target)
    (gradient,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError):
        gradient.sum().backward()
