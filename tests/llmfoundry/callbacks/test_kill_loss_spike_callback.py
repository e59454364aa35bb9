"""Runs whose loss jumps, stays high or does neither."""

from typing import Any

import pytest
import torch

from composer.core.callback import Callback
from llmfoundry.builders.components import build_callback
from llmfoundry.callbacks import KillLossSpike
from llmfoundry.utils.exceptions import HighLossError, LossSpikeError
from tests.composer.callbacks.guarded import batches, make_trainer, memory_of

pytestmark = pytest.mark.filterwarnings("ignore::llmfoundry.utils.warnings.ExperimentalWarning")


def _trainer(callback: KillLossSpike, *poisoned: int, **settings: Any) -> Any:
    """A run whose weights stay, so that the loss of a poisoned batch is a hundredfold."""
    data = batches(settings.pop("count", 20), dict.fromkeys(poisoned, 10.0))

    def still(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.0)

    return make_trainer(callback, *settings.pop("more", ()), data=data, optimizer=still, **settings)


def _killer(**settings: Any) -> Any:
    sizes = {"window_size": 8, "outlier_multiplier": 4, "patience": 1, "loss_cap": 1e6}
    return build_callback("kill_loss_spike", {"log_only": False, **sizes, **settings})


def test_a_spike_that_stays_ends_the_run() -> None:
    trainer = _trainer(_killer(), 10, 12, 13)
    with pytest.raises(LossSpikeError, match="4 times greater.*over 2 consecutive") as raised:
        trainer.fit()
    assert trainer.state.timestamp.batch.value == 14
    assert len(raised.value.loss_window) == 9
    trainer.close()


@pytest.mark.parametrize("poisoned", [(), (3, 4), (10, 12)])
def test_an_outlier_or_an_early_one_does_not(poisoned: tuple[int, ...]) -> None:
    trainer = _trainer(_killer(), *poisoned)
    trainer.fit()
    assert trainer.state.timestamp.batch.value == 20
    trainer.close()


def test_a_spike_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    trainer = _trainer(_killer(log_only=True), 10, 11, 12)
    trainer.fit()
    trainer.close()
    memory = memory_of(trainer)
    spikes = memory.data["loss_spike"]
    assert [(stamp.batch.value, value) for stamp, value in spikes] == [(12, 1)]
    losses = [float(loss) for _, loss in memory.data["loss/train/total"]]
    assert [row[0] for row in _table(memory, "loss_window")] == pytest.approx(losses[3:12])
    assert "loss spike" in caplog.text and "high_loss" not in memory.data


def _table(memory: Any, name: str) -> list[list[float]]:
    import json

    return json.loads(memory.tables[name])["data"]


def test_a_loss_that_stays_high_ends_the_run() -> None:
    trainer = _trainer(_killer(loss_cap=1e-6))
    with pytest.raises(HighLossError, match="threshold of 1e-06"):
        trainer.fit()
    assert trainer.state.timestamp.batch.value == 16
    trainer.close()
    once = _trainer(_killer(loss_cap=1e-6, log_only=True))
    once.fit()
    once.close()
    assert [stamp.batch.value for stamp, _ in memory_of(once).data["high_loss"]] == [16]


class _StopAt(Callback):
    def batch_end(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch.value == 103:
            state.stop_training()


@pytest.mark.parametrize("duration", ["3000ba", "12000sp", "30ep"])
def test_defaults_fit_the_run(duration: str) -> None:
    callback = KillLossSpike()
    trainer = _trainer(callback, count=100, max_duration=duration, more=[_StopAt()])
    trainer.fit()
    trainer.close()
    assert callback.window_size == 150 and len(callback.loss_window) == 103
    assert not callback.is_fitted


def test_the_cap_falls_to_the_largest_loss_of_the_first_window_and_state_is_kept() -> None:
    callback = KillLossSpike(window_size=5)
    trainer = _trainer(callback)
    trainer.fit()
    trainer.close()
    losses = [float(loss) for _, loss in memory_of(trainer).data["loss/train/total"]]
    assert callback.loss_cap == pytest.approx(min(max(losses[:5]), 10))
    assert list(callback.loss_window) == pytest.approx(losses[-5:])
    other = KillLossSpike(window_size=5)
    other.load_state_dict(callback.state_dict())
    assert other.state_dict() == callback.state_dict()
    for name in ("patience", "window_size"):
        with pytest.raises(ValueError, match=f"{name}=-1"):
            KillLossSpike(**{name: -1})
