"""AdEMAMix against the recurrences of its paper in double precision."""

import math

import pytest
import torch

from composer.optim import DecoupledAdamW, DecoupledAdEMAMix
from composer.optim.ademamix import slow_settings
from tests.composer.optim.references import Model, sharded_steps, steps, weights
from tests.launch import run_ranks

BETAS = (0.9, 0.99, 0.999)


@pytest.mark.parametrize("warmup", [0, 4])
@pytest.mark.parametrize("decay", [0.0, 1e-2])
def test_the_recurrences(warmup: int, decay: float) -> None:
    model = Model(torch.float64)
    expected = weights(model)
    optimizer = DecoupledAdEMAMix(
        model.parameters(), 0.01, BETAS, alpha=5.0, warmup_steps=warmup, weight_decay=decay
    )
    fast, slow, squares = ({n: torch.zeros_like(w) for n, w in expected.items()} for _ in range(3))
    for step, gradients in enumerate(steps(model, optimizer, 6), 1):
        beta1, beta2, beta3 = BETAS
        alpha = min(5.0, step * 5.0 / warmup) if warmup else 5.0
        if warmup and step < warmup:
            done, low, high = step / warmup, math.log(beta1), math.log(beta3)
            beta3 = min(math.exp(low * high / ((1 - done) * high + done * low)), beta3)
        for name, gradient in gradients.items():
            fast[name] = beta1 * fast[name] + (1 - beta1) * gradient
            slow[name] = beta3 * slow[name] + (1 - beta3) * gradient
            squares[name] = beta2 * squares[name] + (1 - beta2) * gradient**2
            root = (squares[name] / (1 - beta2**step)).sqrt() + 1e-8
            update = (fast[name] / (1 - beta1**step) + alpha * slow[name]) / root
            expected[name] = expected[name] * (1 - decay) - 0.01 * update
    for name, value in weights(model).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-12)


def test_without_the_slow_average_it_is_adamw() -> None:
    ours, theirs = Model(), Model()
    steps(ours, DecoupledAdEMAMix(ours.parameters(), 0.01, BETAS, alpha=0.0, weight_decay=1e-4))
    steps(theirs, DecoupledAdamW(theirs.parameters(), 0.01, BETAS[:2], weight_decay=1e-4))
    for name, value in weights(ours).items():
        torch.testing.assert_close(value, weights(theirs)[name], rtol=0, atol=1e-6)


def test_the_half_life_grows_in_a_line() -> None:
    def half_life(step: int) -> float:
        return math.log(0.5) / math.log(slow_settings(step, 10, 8.0, BETAS)[1])

    lives = [half_life(step) for step in range(1, 11)]
    gaps = [later - sooner for sooner, later in zip(lives, lives[1:], strict=False)]
    assert gaps == pytest.approx([gaps[0]] * 9) and gaps[0] > 1
    assert slow_settings(5, 10, 8.0, BETAS)[0] == 4.0
    assert slow_settings(10, 10, 8.0, BETAS) == (8.0, 0.999)


def test_cautious_decay() -> None:
    start = torch.tensor([1.0, 1.0])
    weight = torch.nn.Parameter(start.clone())
    optimizer = DecoupledAdEMAMix(
        [weight], 0.01, weight_decay=0.1, cautious_weight_decay=True, alpha=0.0
    )
    weight.grad = torch.tensor([1.0, -1.0])
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([0.99 - 0.1, 1.01]))


def _made(model: torch.nn.Module) -> torch.optim.Optimizer:
    return DecoupledAdEMAMix(model.parameters(), 0.01, weight_decay=1e-3)


@pytest.mark.slow
def test_sharded_it_is_that_of_one_process() -> None:
    alone = Model()
    steps(alone, _made(alone), 4)
    for found in run_ranks(sharded_steps, 2, _made):
        for name, value in weights(alone).items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5)


def test_wrong_settings() -> None:
    for settings, words in (({"betas": (0.9, 0.99)}, "three"), ({"warmup_steps": -1}, "or posit")):
        with pytest.raises(ValueError, match=words):
            DecoupledAdEMAMix(Model().parameters(), **settings)
