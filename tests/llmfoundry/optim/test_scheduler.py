"""The inverse-square-root schedule against its formula."""

from types import SimpleNamespace
from typing import Any

import pytest

from composer.core.time import Time
from llmfoundry.optim.scheduler import InverseSquareRootWithWarmupScheduler
from llmfoundry.utils.warnings import ExperimentalWarning

pytestmark = pytest.mark.filterwarnings("ignore::llmfoundry.utils.warnings.ExperimentalWarning")


def state_at(batch: int, max_duration: str = "100ba") -> Any:
    timestamp = SimpleNamespace(get=lambda unit: Time(batch, unit))
    return SimpleNamespace(
        timestamp=timestamp, max_duration=Time.from_timestring(max_duration), dataloader_len=None
    )


def test_curve() -> None:
    scheduler = InverseSquareRootWithWarmupScheduler("10ba", "20ba", "30ba", "1dur", 0.1, 0.0)
    decay = lambda t: 0.1 + 0.9 / ((t - 10 + 20) / 20) ** 0.5
    assert scheduler(state_at(0)) == 0
    assert scheduler(state_at(5)) == 0.5
    assert scheduler(state_at(10)) == pytest.approx(1.0)
    assert scheduler(state_at(40)) == pytest.approx(decay(40))
    assert scheduler(state_at(70)) == pytest.approx(decay(70))
    assert scheduler(state_at(85)) == pytest.approx(decay(70) / 2)
    assert scheduler(state_at(100)) == pytest.approx(0.0)
    # B23: past its end it stays on the floor.
    assert scheduler(state_at(130)) == pytest.approx(0.0)


def test_b17_b18_warmups_as_long_as_the_run_and_longer() -> None:
    scheduler = InverseSquareRootWithWarmupScheduler("10ba", "10ba", "0ba")
    assert [scheduler(state_at(i, "10ba")) for i in range(10)] == [i / 10 for i in range(10)]
    scheduler = InverseSquareRootWithWarmupScheduler("20ba", "10ba", "0ba")
    with pytest.warns(UserWarning, match="t_warmup=20ba is longer than the schedule"):
        assert scheduler(state_at(10, "10ba")) == 0.5
    scheduler = InverseSquareRootWithWarmupScheduler("100tok", "10tok", "0tok")
    with pytest.raises(ValueError, match="t_warmup=100tok, max_duration=2ep"):
        scheduler(state_at(0, "2ep"))


def test_without_a_cooldown() -> None:
    scheduler = InverseSquareRootWithWarmupScheduler("10ba", "20ba", "0ba")
    assert scheduler(state_at(100)) == pytest.approx(1 / (110 / 20) ** 0.5)


def test_what_is_refused() -> None:
    make = InverseSquareRootWithWarmupScheduler
    with pytest.raises(ValueError, match="alpha_f_decay >= alpha_f_cooldown."):
        make("10ba", "20ba", "0ba", alpha_f_decay=0.1, alpha_f_cooldown=0.2)
    with pytest.raises(ValueError, match='cannot be in units of "dur".'):
        make("0.1dur", "20ba", "0ba")
    with pytest.raises(ValueError, match="must match"):
        make("10ba", "20ba", "0ba")(state_at(3, "10ep"))
    with pytest.warns(UserWarning, match="warmup duration is 0"):
        make("0ba", "20ba", "0ba")


def test_it_says_that_it_is_an_experiment() -> None:
    with pytest.warns(ExperimentalWarning):
        InverseSquareRootWithWarmupScheduler("1ba", "1ba", "1ba")
