"""WSD: its three parts by their formulas, in any unit, and what does not fit."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from composer.core.time import Time, Timestamp
from composer.optim import WarmupStableDecayScheduler
from llmfoundry.builders.components import build_scheduler


def value(scheduler: Any, batch: int, duration: str = "100ba", ssr: float = 1.0) -> float:
    state: Any = SimpleNamespace(
        timestamp=Timestamp(batch=batch, token=10 * batch),
        max_duration=Time.from_timestring(duration),
        dataloader_len=Time.from_batch(25),
        surplus_batches=0,
    )
    return scheduler(state, ssr)


@pytest.mark.parametrize(("shape", "half"), [("1-sqrt", 1 - math.sqrt(0.5)), ("linear", 0.5)])
def test_the_three_parts(shape: str, half: float) -> None:
    scheduler = WarmupStableDecayScheduler("10ba", "0.2dur", alpha_f=0.1, shape=shape)
    found = [value(scheduler, batch) for batch in (0, 5, 10, 50, 80, 90, 100, 120)]
    expected = [0.0, 0.5, 1.0, 1.0, 1.0, 0.1 + 0.9 * half, 0.1, 0.1]
    assert found == pytest.approx(expected)


def test_the_stable_part_does_not_know_the_end() -> None:
    for duration in ("100ba", "400ba"):
        scheduler = WarmupStableDecayScheduler("10ba", "20ba")
        assert value(scheduler, 79, duration) == 1.0
    assert value(WarmupStableDecayScheduler("10ba", "20ba"), 395, "400ba") < 0.2


def test_epochs_tokens_and_a_stretched_run() -> None:
    assert value(WarmupStableDecayScheduler("1ep", "1ep"), 75, "4ep") == 1.0
    assert value(WarmupStableDecayScheduler("1ep", "1ep"), 76, "4ep") == pytest.approx(0.8)
    in_tokens = WarmupStableDecayScheduler("100tok", "200tok", shape="linear")
    assert value(in_tokens, 90, "1000tok") == pytest.approx(0.5)
    stretched = WarmupStableDecayScheduler("10ba", "20ba", t_max="100ba", shape="linear")
    assert value(stretched, 45, "50ba", ssr=0.5) == pytest.approx(0.5)
    assert value(WarmupStableDecayScheduler("10ba", "0ba"), 99) == 1.0


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="shape='cosine' is unknown"):
        WarmupStableDecayScheduler("10ba", shape="cosine")
    with pytest.raises(ValueError, match="fit into it"):
        value(WarmupStableDecayScheduler("60ba", "50ba"), 1)
    with pytest.raises(ValueError, match="fit into it"):
        value(WarmupStableDecayScheduler("10ba", "50tok"), 1)
    with pytest.raises(ValueError, match="Cannot use warmup scheduler"):
        value(WarmupStableDecayScheduler("10tok", "50ba"), 1)


def test_a_recipe_builds_it() -> None:
    built = build_scheduler("warmup_stable_decay", {"t_warmup": "10ba", "t_cooldown": "0.1dur"})
    assert isinstance(built, WarmupStableDecayScheduler) and built.shape == "1-sqrt"
